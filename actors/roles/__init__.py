"""The roles. Each module assembles one role, and has the coroutine that its process runs."""

ROLES = {
    "router": "actors.roles.router:run",
    "projection": "actors.roles.projection:run",
    "dispatcher": "actors.roles.dispatcher:run",
    "callbacks": "actors.roles.callbacks:run",
}
"""The import path of each role's coroutine function, by the name of the role's actor."""
