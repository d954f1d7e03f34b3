"""What scikit-learn expects of an estimator: parameters, copies, tags; and no pickles."""

from __future__ import annotations

import copy
from typing import Any, Self

from pfedhgp.errors import InputError
from pfedhgp.settings.table import MODEL_SETTINGS


class SklearnManners:
    """The methods of `FederatedGP` by which scikit-learn handles it."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {each.name: getattr(self, each.name) for each in MODEL_SETTINGS}

    def set_params(self, **params: Any) -> Self:
        """Changes some of them; unknown names are refused."""
        known = [each.name for each in MODEL_SETTINGS]
        unknown = [name for name in params if name not in known]
        if unknown:
            raise InputError(f"no parameter `{unknown[0]}`; there are {', '.join(known)}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        values = ((each, getattr(self, each.name)) for each in MODEL_SETTINGS)
        changed = [f"{s.name}={v!r}" for s, v in values if v is not s.default and v != s.default]
        return f"FederatedGP({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's cross-validation asks: outputs come with the table, and there is no y."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __reduce_ex__(self, protocol: Any) -> Any:
        if hasattr(self, "model_"):
            raise InputError(
                "a fitted FederatedGP is not pickled: use `save(folder)` and `FederatedGP.load(folder)`"
            )
        return super().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Settings are copied; a fitted model does not change, and is shared."""
        again = type(self)(**copy.deepcopy(self.get_params(), memo))
        own = {name: value for name, value in vars(self).items() if name not in vars(again)}
        vars(again).update(own)
        return again

    def __copy__(self) -> Self:
        again = type(self)(**self.get_params())
        vars(again).update(vars(self))
        return again
