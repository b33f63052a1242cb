"""Settings of the documentation site, which `make docs` builds with Sphinx.

The pages of the API are written into docs/api before each build, one for each public module, so
that they have the names of its ``__all__``. `import jaxccomp` needs no compiled engine for it.
"""

import importlib
import inspect
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import jaxccomp  # noqa: E402

project = "jaxccomp"
copyright = "the authors of jaxccomp; Apache-2.0"
version = release = jaxccomp.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["gpu/README.md"]
myst_heading_anchors = 4
# The same pages are read on GitHub, which has no roles and directives of MyST.
myst_enable_extensions = []
suppress_warnings = ["myst.header"]  # a section of one level may follow a title at once

default_role = "py:obj"  # `name` in docstrings
napoleon_use_ivar = True  # the section "Attributes" describes fields, which autodoc leaves out
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autosummary_generate = False
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"jaxccomp {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

# The public modules: the submodules of the package, and the two that its docstring names.
MODULES = sorted(
    {name for name in jaxccomp.__all__ if inspect.ismodule(getattr(jaxccomp, name))} | {"comm"}
)


def public_names(module):
    """Return the public names that a module defines: its ``__all__``, or what it documents."""
    names = getattr(module, "__all__", None)
    if names is not None:
        return [name for name in names if not inspect.ismodule(getattr(module, name))]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and (inspect.isclass(value) or inspect.isfunction(value))
    ]


def described(module, name):
    """Return the directive that documents a name."""
    value = getattr(module, name)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        fields = ", ".join(getattr(value, "_fields", ()))  # of a NamedTuple
        excluded = f"   :exclude-members: {fields}\n" if fields else ""
        return f".. {kind}:: {name}\n   :members:\n{excluded}"
    return f".. {'autofunction' if callable(value) else 'autodata'}:: {name}\n"


def page(title, module, groups):
    """Return the page of a module: its docstring, a table of its names, and their docstrings."""
    text = [title, "=" * len(title), "", f".. automodule:: {module.__name__}", ""]
    text += [f".. currentmodule:: {module.__name__}", ""]
    for heading, names in groups:
        if heading:
            text += [heading, "-" * len(heading), ""]
        text += [".. autosummary::", "   :nosignatures:", ""]
        text += [f"   {name}" for name in names if callable(getattr(module, name))]
        text += ["", *(described(module, name) for name in names)]
    return "\n".join(text) + "\n"


def groups_of_the_package():
    """Yield the names of ``jaxccomp`` by their use, as heading and names."""
    names = public_names(jaxccomp)
    operations = [name for name in names if name in jaxccomp.ops.__all__]
    starts = [name for name in names if name in ("Communicator", "init", "is_initialized", "world")]
    yield "Start and communicators", starts
    yield "Operations", operations
    yield "Programs and extensions", [n for n in names if n not in {*operations, *starts}]


def write_api():
    """Write docs/api/*.rst, and leave files alone that would not change."""
    folder = HERE / "api"
    folder.mkdir(exist_ok=True)
    pages = {"jaxccomp": page("jaxccomp", jaxccomp, groups_of_the_package())}
    for name in MODULES:
        module = importlib.import_module(f"jaxccomp.{name}")
        pages[name] = page(f"jaxccomp.{name}", module, [("", public_names(module))])
    for name, text in pages.items():
        file = folder / f"{name}.rst"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    for file in folder.glob("*.rst"):
        if file.stem not in pages:
            file.unlink()


def name_pages(app, name, source):
    """Name pages by their titles where a link on GitHub shows a file: `[training.md](training.md)`.

    MyST gives a link without text the title of its target.
    """
    source[0] = re.sub(r"\[[\w/]+\.md\]\(([\w/]+\.md(?:#[\w-]+)?)\)", r"[](\1)", source[0])


def mend_docstring(app, what, name, obj, options, lines):
    """Make links of the pages that docstrings name, and leave out the docstrings of builtin types.

    Docstrings name pages as ``docs/training.md``. A constant has the docstring of its type.
    """
    if what == "data" and lines and (type(obj).__doc__ or "").startswith(lines[0]):
        lines.clear()
    lines[:] = [re.sub(r"\bdocs/(\w+)\.md\b", r":doc:`/\1`", line) for line in lines]


def setup(app):
    """Write the pages of the API before Sphinx looks for sources."""
    app.connect("config-inited", lambda app, config: write_api())
    app.connect("source-read", name_pages)
    app.connect("autodoc-process-docstring", mend_docstring)
