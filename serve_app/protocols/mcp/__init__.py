"""The Model Context Protocol at `/mcp`: tools and resources for agents."""
