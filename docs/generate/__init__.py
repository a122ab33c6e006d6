"""Parts of the documentation that are generated when the site is built."""
