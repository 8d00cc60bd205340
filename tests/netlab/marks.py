"""Which tests need a lab; they are skipped, and it is said why, where there can be none."""

from __future__ import annotations

import pytest

from tests.netlab.namespaces import missing

_missing = missing()

needs_lab = pytest.mark.skipif(_missing is not None, reason=str(_missing))
