"""Hardware profiles from YAML: those shipped with kvaware, and a file of one's own over them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from kvaware_crds.errors import ConfigError
from kvaware_engine import GpuProduct, HardwareProfile, ProfileOrigin, scaled_profile

__all__ = ["load_profiles"]

_DATA: Final = Path(__file__).parent / "data"
_MAX_BYTES: Final = 4 * 2**20
_TERA: Final = 1e12
_GIGA: Final = 1e9

Name = Annotated[str, Field(min_length=1, max_length=253)]
Count = Annotated[int, Field(ge=1, le=1024)]
Above = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotBelow = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, frozen=True, strict=True)


class _Product(_Strict):
    name: Name
    words: Annotated[list[Name], Field(min_length=1)]
    tflops: Above
    terabytes_per_second: Above


class _Prefill(_Strict):
    base_ms: NotBelow
    ms_per_token: NotBelow
    ms_per_token_squared: NotBelow
    prompt_tokens_max: Annotated[int, Field(ge=1)] = 8192
    error_ratio: NotBelow | None = None
    """Says how well the figures fit; nothing is computed from it."""


class _Profile(_Strict):
    product: Name
    model: Name
    parameters_billions: Above
    gpus: Count
    prefill: _Prefill
    decode_steps: Annotated[list[Annotated[list[Above], Field(min_length=2, max_length=2)]], Field(min_length=1)]


class _File(_Strict):
    products: list[_Product] = []
    profiles: list[_Profile] = []


def load_profiles(own: Path | None = None) -> dict[str, HardwareProfile]:
    """The shipped profiles, then those of a file of one's own, which replace what has the same name.

    GPUs that nobody measured get every measured profile of the fastest measured one, scaled by nominal speed. A
    product of one's own comes in the same way.

    Returns: ``product/model/gpus`` → profile.
    Raises: ConfigError naming the file and the field.
    """
    files = [_read(_DATA / "gpu_products.yaml"), _read(_DATA / "hardware_profiles.yaml")]
    if own is not None:
        files.append(_read(own))
    products = {
        product.name: GpuProduct(
            name=product.name,
            words=tuple(word.lower() for word in product.words),
            tflops=product.tflops,
            hbm_bytes_per_s=product.terabytes_per_second * _TERA,
        )
        for file in files
        for product in file.products
    }
    measured: dict[str, HardwareProfile] = {}
    for file in files:
        for profile in file.profiles:
            measured[f"{profile.product}/{profile.model}/{profile.gpus}"] = _profile(profile, products)
    return measured | _scaled(measured, products)


def _read(path: Path) -> _File:
    try:
        content = path.read_bytes()[: _MAX_BYTES + 1]
        if len(content) > _MAX_BYTES:
            raise ConfigError(f"{path.name}: expected at most {_MAX_BYTES} bytes")
        value: Any = yaml.load(content, Loader=yaml.CSafeLoader)
        return _File.model_validate({} if value is None else value)
    except OSError as error:
        raise ConfigError(f"hardware profiles {path}: expected a file that can be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{path.name}: expected YAML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path.name}: {place or 'the file'}: {first['msg']}") from error


def _profile(profile: _Profile, products: Mapping[str, GpuProduct]) -> HardwareProfile:
    place = f"profile {profile.product}/{profile.model}/{profile.gpus}"
    if profile.product not in products:
        raise ConfigError(f"{place}: expected a product that stands under products, got {profile.product!r}")
    try:
        return HardwareProfile(
            product=products[profile.product],
            model=profile.model,
            parameters=profile.parameters_billions * _GIGA,
            gpus=profile.gpus,
            prefill_base_ms=profile.prefill.base_ms,
            prefill_ms_per_token=profile.prefill.ms_per_token,
            prefill_ms_per_token_squared=profile.prefill.ms_per_token_squared,
            decode_steps=tuple((int(batch), ms) for batch, ms in profile.decode_steps),
            prompt_tokens_max=profile.prefill.prompt_tokens_max,
        )
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from error


def _scaled(measured: Mapping[str, HardwareProfile], products: Mapping[str, GpuProduct]) -> dict[str, HardwareProfile]:
    """Profiles of the products that have none."""
    known = {profile.product.name: profile.product for profile in measured.values()}
    fastest = max(known.values(), key=lambda product: product.tflops).name
    return {
        f"{product.name}/{profile.model}/{profile.gpus}": scaled_profile(
            profile,
            product=product,
            parameters=profile.parameters,
            gpus=profile.gpus,
            origin=ProfileOrigin.SCALED,
        )
        for product in products.values()
        if product.name not in known
        for profile in measured.values()
        if profile.product.name == fastest
    }
