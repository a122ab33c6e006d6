"""The console, a web page for users. Its files are served without a build step."""
