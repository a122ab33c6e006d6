"""How much is kept of what the page stores."""

from __future__ import annotations

from serve_app.api_error import ApiError
from serve_app.replica import Replica


def too_much(replica: Replica) -> ApiError:
    settings = replica.services.adapter_settings
    return ApiError(
        413,
        "too_many_user_bytes",
        f"At most {settings.max_user_files:,} files of {settings.max_user_bytes:,} bytes are "
        f"kept, and {settings.max_user_file_bytes:,} bytes of settings. Delete some files.",
    )
