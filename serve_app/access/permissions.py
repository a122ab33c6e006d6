"""What a key may do."""

from __future__ import annotations

from events.store.records import ApiKey, Scope
from serve_app.refusals import CallbackHostForbidden, EndpointForbidden, ScopeMissing


def require_scope(key: ApiKey, scope: Scope) -> None:
    """`admin` includes every scope. Raises ScopeMissing."""
    if key.scopes.isdisjoint((scope, Scope.ADMIN)):
        raise ScopeMissing(scope)


def require_endpoint(key: ApiKey, id: str) -> None:
    """Raises EndpointForbidden."""
    if not key.limits.allow_endpoint(id):
        raise EndpointForbidden


def require_callback_host(key: ApiKey, host: str) -> None:
    """Raises CallbackHostForbidden."""
    if not key.limits.allow_callback_host(host):
        raise CallbackHostForbidden
