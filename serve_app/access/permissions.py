"""What a key may do."""

from __future__ import annotations

from events.store.records import ApiKey, Endpoint, Scope
from serve_app.refusals import CallbackHostForbidden, EndpointForbidden, ScopeMissing


def require_scope(key: ApiKey, scope: Scope) -> None:
    """`admin` includes every scope. Raises ScopeMissing."""
    if key.scopes.isdisjoint((scope, Scope.ADMIN)):
        raise ScopeMissing(scope)


def require_endpoint(key: ApiKey, id: str) -> None:
    """Raises EndpointForbidden."""
    if not key.limits.allow_endpoint(id):
        raise EndpointForbidden


def may_see(key: ApiKey, endpoint: Endpoint) -> bool:
    """An endpoint that has an owner is theirs, and the administrators'. To others it is unknown."""
    return endpoint.owner in {None, key.owner} or Scope.ADMIN in key.scopes


def require_callback_host(key: ApiKey, host: str) -> None:
    """Raises CallbackHostForbidden."""
    if not key.limits.allow_callback_host(host):
        raise CallbackHostForbidden
