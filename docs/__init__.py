"""The pages of the documentation, and the programs that generate parts of the pages from the
code.
"""
