"""What every section of a job has in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Section(BaseModel):
    """Frozen; unknown fields are errors; the docstring under a field is its documentation."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        validate_default=True,
        allow_inf_nan=False,
    )
