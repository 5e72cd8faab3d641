"""What an inventory says, checked against what the roles declare, before anything is touched.

Every variable of an inventory must be declared in the `meta/argument_specs.yml` of some role, and have the type
declared there. All faults are collected: an operator fixes an inventory once, not once per fault. Values are never
printed unless the declaration lists the choices: they may be secrets. Facts and role defaults play no part here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kinemill.errors import ConfigError, NotFoundError
from kinemill.records import nearest

__all__ = [
    "Declared",
    "Fault",
    "Removed",
    "Setting",
    "declared_variables",
    "inventory_faults",
    "inventory_settings",
    "judge",
    "load_yaml",
    "removed_variables",
    "value_faults",
]

# Set by inventories to steer Ansible itself, never by a role.
ANSIBLE_PREFIX = "ansible_"
# Set by molecule, in the inventory that it writes beside a scenario's own.
MOLECULE_PREFIX = "molecule_"
# Set on hosts by Ansible itself.
_MAGIC = frozenset({"inventory_dir", "inventory_file", "inventory_hostname", "inventory_hostname_short"})

# What SOPS leaves in the files that it encrypts: its notes, and values that only SOPS can read.
SOPS_METADATA = "sops"
SOPS_CIPHERTEXT = "ENC[AES256_GCM,"

_PYTHON_TYPES: Mapping[str, tuple[type[Any], ...]] = {
    "str": (str,),
    "path": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "list": (list, tuple),
    "dict": (Mapping,),
}


@dataclass(frozen=True, slots=True)
class Declared:
    """A variable as one role declares it.

    Attributes:
        name: The variable.
        role: The role whose `meta/argument_specs.yml` declares it.
        spec: Its entry there: type, elements, choices, options, description.
    """

    name: str
    role: str
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Removed:
    """A variable that an earlier release knew.

    Attributes:
        release: The release that removed it.
        instead: What to write now, in words.
    """

    release: str
    instead: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable as an inventory sets it.

    Attributes:
        name: The variable.
        value: Its value, templates resolved where that needs no facts.
        where: `file:line` where known, else the group or host.
        templated: True where the value still holds a template or cannot be decrypted; its type cannot be judged here.
        sealed: True where the inventory keeps the value, or a part of it, encrypted.
    """

    name: str
    value: Any
    where: str
    templated: bool = False
    sealed: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that is wrong with an inventory.

    Attributes:
        where: `file:line`, group or host.
        variable: The variable at fault.
        kind: `unknown`, `removed` or `type`.
        message: What is wrong and what to do.
    """

    where: str
    variable: str
    kind: str
    message: str

    def __str__(self) -> str:
        """One line for the operator."""
        return f"{self.where}: {self.message}"


def load_yaml(path: Path) -> Any:
    """Load one YAML file with the safe loader.

    Raises:
        NotFoundError: The file is not there.
        ConfigError: It is not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: no such file") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error


def declared_variables(roles_dir: Path) -> dict[str, Declared]:
    """Every variable that the roles below a folder declare.

    Args:
        roles_dir: The folder that holds the roles.

    Returns:
        The declarations by variable name.

    Raises:
        ConfigError: Two roles declare the same variable, or a spec file is not a spec file.
        NotFoundError: The folder is not there.
    """
    if not roles_dir.is_dir():
        raise NotFoundError(f"{roles_dir}: no such folder of roles")
    found: dict[str, Declared] = {}
    for path in sorted(roles_dir.glob("*/meta/argument_specs.yml")):
        role = path.parent.parent.name
        document = load_yaml(path)
        specs = document.get("argument_specs") if isinstance(document, Mapping) else None
        if not isinstance(specs, Mapping):
            raise ConfigError(f"{path}: needs a mapping 'argument_specs'")
        for entry_point, entry in specs.items():
            for name, spec in (entry.get("options") or {}).items():
                other = found.get(name)
                if other is not None and other.role != role:
                    raise ConfigError(f"{path}: {name} is declared by role {other.role} too; one role owns a variable")
                if other is not None and other.spec != spec:
                    raise ConfigError(f"{path}: {name} differs between entry points (seen at {entry_point})")
                found[name] = Declared(name, role, spec or {})
    return found


def removed_variables(path: Path) -> dict[str, Removed]:
    """The list of variables that earlier releases knew.

    Args:
        path: A YAML mapping `name: {release: ..., instead: ...}`; may be empty.

    Returns:
        The removals by variable name.

    Raises:
        ConfigError: An entry lacks `release` or `instead`.
    """
    document = load_yaml(path) or {}
    try:
        return {
            str(name): Removed(str(entry["release"]), str(entry["instead"]))
            for name, entry in dict(document.get("removed_variables") or {}).items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: every removed variable needs 'release' and 'instead'") from error


def value_faults(spec: Mapping[str, Any], value: Any, path: str) -> list[str]:
    """Compare one value with its declaration.

    Stricter than Ansible, which turns almost anything into a string: `"5"` is no int and `"yes"` is no bool.

    Args:
        spec: The declaration: `type` (default str), `elements`, `choices`, `options`, `required`.
        value: What the inventory says.
        path: The name to use in messages, such as `slurm_partitions[0].name`.

    Returns:
        What is wrong, one sentence each; empty when it fits.
    """
    if value is None:
        return [f"{path} is empty; remove it or give it a value"]
    if _holds_template(value) and isinstance(value, str):
        return []
    declared_type = str(spec.get("type", "str"))
    allowed = _PYTHON_TYPES.get(declared_type)
    if allowed is None:  # raw, json, jsonarg, bytes ...: whatever the role makes of it
        return []
    if not isinstance(value, allowed) or (isinstance(value, bool) and declared_type != "bool"):
        return [f"{path} must be {_article(declared_type)}, not {_article(_type_name(value))}"]
    return _content_faults(spec, value, path)


def _content_faults(spec: Mapping[str, Any], value: Any, path: str) -> list[str]:
    """What is wrong inside a value whose own type is right."""
    faults: list[str] = []
    if isinstance(value, list | tuple):
        element = {key: spec[key] for key in ("options", "choices") if key in spec}
        element["type"] = spec.get("elements", "raw")
        for index, item in enumerate(value):
            faults += value_faults(element, item, f"{path}[{index}]")
        return faults
    choices = spec.get("choices")
    if choices is not None and value not in choices:
        hint = _nearest(str(value), [str(choice) for choice in choices])
        faults.append(f"{path} is {value!r}, must be one of {', '.join(map(str, choices))}{hint}")
    options = spec.get("options")
    if isinstance(value, Mapping) and options is not None:
        for key, item in value.items():
            if key not in options:
                faults.append(f"{path}.{key} is not known{_nearest(str(key), options)}")
            else:
                faults += value_faults(options[key] or {}, item, f"{path}.{key}")
        faults += [
            f"{path}.{key} is missing" for key, o in options.items() if (o or {}).get("required") and key not in value
        ]
    return faults


def judge(settings: Iterable[Setting], declared: Mapping[str, Declared], removed: Mapping[str, Removed]) -> list[Fault]:
    """Find every fault of an inventory's settings.

    Args:
        settings: What the inventory says.
        declared: What the roles declare.
        removed: What earlier releases knew.

    Returns:
        All faults, ordered by place.
    """
    faults: set[Fault] = set()
    for setting in settings:
        name = setting.name
        if name.startswith((ANSIBLE_PREFIX, MOLECULE_PREFIX)) or name in _MAGIC:
            continue
        if name in declared:
            if not setting.templated:
                faults |= {
                    Fault(setting.where, name, "type", text)
                    for text in value_faults(declared[name].spec, setting.value, name)
                }
        elif name in removed:
            gone = removed[name]
            text = f"{name} was removed in release {gone.release}; {gone.instead}"
            faults.add(Fault(setting.where, name, "removed", text))
        else:
            text = f"{name} is declared by no role{_nearest(name, declared)}"
            faults.add(Fault(setting.where, name, "unknown", text))
    return sorted(faults)


def inventory_settings(sources: Sequence[str], *, extra_vars: Mapping[str, Any] | None = None) -> list[Setting]:
    """Read every variable that an inventory sets, for each group and host.

    Args:
        sources: Inventory folders or files, as given to `ansible-playbook -i`.
        extra_vars: Variables of the command line.

    Returns:
        The settings; one per group or host that sets the variable.

    Raises:
        ConfigError: A source cannot be read as an inventory.
    """
    # Ansible takes half a second to import; only the commands that read an inventory pay for it.
    from ansible.errors import AnsibleError
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar
    from ansible.vars.manager import VariableManager
    from ansible.vars.plugins import get_vars_from_inventory_sources

    for source in sources:
        if "," not in source and not Path(source).exists():
            raise NotFoundError(f"inventory {source}: no such file or folder")
    loader = DataLoader()
    loader.set_vault_secrets(_vault_secrets())
    try:
        inventory = InventoryManager(loader=loader, sources=list(sources))
        manager = VariableManager(loader=loader, inventory=inventory)
        found: list[Setting] = []
        entities: list[Any] = [*inventory.groups.values(), *inventory.get_hosts("all")]
        for entity in entities:
            hosts = entity.get_hosts() if hasattr(entity, "get_hosts") else [entity]
            context = manager.get_vars(host=hosts[0]) if hosts else {}
            templar = Templar(loader=loader, variables=context)
            own: dict[str, Any] = {}
            for layer in (entity.vars, get_vars_from_inventory_sources(loader, inventory._sources, [entity], "all")):
                own.update(layer)
            for name, value in own.items():
                if name == SOPS_METADATA and isinstance(value, Mapping):
                    continue
                where = _origin(value) or f"{type(entity).__name__.lower()} {entity.name}"
                found.append(_setting(str(name), value, where, templar, AnsibleError))
        templar = Templar(loader=loader, variables={})
        for name, value in (extra_vars or {}).items():
            found.append(_setting(str(name), value, "command line", templar, AnsibleError))
    except AnsibleError as error:
        where = _origin(error.obj) or _unparsable(sources) or f"inventory {', '.join(sources)}"
        raise ConfigError(f"{where}: {error}") from error
    return found


def inventory_faults(
    sources: Sequence[str],
    *,
    roles_dir: Path,
    removed_file: Path,
    extra_vars: Mapping[str, Any] | None = None,
) -> list[Fault]:
    """All faults of an inventory; see `judge`.

    Args:
        sources: Inventory folders or files.
        roles_dir: The folder that holds the roles.
        removed_file: The list of removed variables.
        extra_vars: Variables of the command line.

    Returns:
        All faults, ordered by place; empty when the inventory is sound.
    """
    declared = declared_variables(roles_dir)
    both = set(declared) & set(removed := removed_variables(removed_file))
    if both:
        raise ConfigError(f"{removed_file}: {', '.join(sorted(both))} is declared by a role, so it is not removed")
    return judge(inventory_settings(sources, extra_vars=extra_vars), declared, removed)


def _setting(name: str, value: Any, where: str, templar: Any, ansible_error: type[Exception]) -> Setting:
    """Resolve a value's templates and secrets; where that needs facts or a password, mark it instead."""
    sealed = _holds_secret(value)
    if not sealed and not _holds_template(value):
        return Setting(name, value, where)
    try:
        plain = templar.template(value)
    except ansible_error:
        return Setting(name, value, where, templated=True, sealed=sealed)
    # What SOPS has encrypted and nothing has decrypted stays as it is.
    return Setting(name, plain, where, templated=_holds_secret(plain), sealed=sealed)


def _unparsable(sources: Iterable[str]) -> str | None:
    """`file:line` of the first file that is not YAML; Ansible's own error does not name it."""
    for source in sources:
        root = Path(source) if Path(source).is_dir() else Path(source).parent
        for path in sorted(root.rglob("*.y*ml")):
            try:
                for _ in yaml.parse(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader):
                    pass
            except yaml.MarkedYAMLError as error:
                line = error.problem_mark.line + 1 if error.problem_mark else 1
                return f"{path}:{line}"
    return None


def _origin(value: Any) -> str | None:
    """`file:line` of a value, from the mark that ansible-core 2.19 leaves on what it loads."""
    try:
        from ansible._internal._datatag._tags import Origin
    except ImportError:
        return None
    origin = Origin.get_tag(value)
    if origin is None or not origin.path:
        return None
    path = Path(origin.path)
    with contextlib.suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return f"{path}:{origin.line_num}" if origin.line_num else str(path)


def _holds_template(value: Any) -> bool:
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(_holds_template(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_template(item) for item in value)
    return False


def _holds_secret(value: Any) -> bool:
    """Whether a value is, or holds, text that Ansible's vault or SOPS has encrypted."""
    if isinstance(value, str):
        return value.startswith(SOPS_CIPHERTEXT)
    if isinstance(value, Mapping):
        return any(_holds_secret(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_secret(item) for item in value)
    return type(value).__name__ == "EncryptedString"


def _vault_secrets() -> Any:
    """The vault passwords that the running Ansible was given; None where it was given none."""
    try:
        from ansible.parsing.vault import VaultSecretsContext
    except ImportError:
        return None
    context = VaultSecretsContext.current(optional=True)
    return context.secrets if context is not None else None


def _nearest(name: str, known: Iterable[str]) -> str:
    close = nearest(name, known)
    return f"; did you mean {close}?" if close else ""


def _type_name(value: Any) -> str:
    for name in ("bool", "int", "float", "str", "list", "dict"):
        if isinstance(value, _PYTHON_TYPES[name]):
            return name
    return type(value).__name__


_WORDS = {
    "str": "text",
    "path": "a path",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping",
}


def _article(type_name: str) -> str:
    return _WORDS.get(type_name, type_name)
