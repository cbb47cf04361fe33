"""Installs placeto_tf and its programs (`placeto-place`, ...); see README.md."""

import pathlib
import re
import sys

if not (3, 9) <= sys.version_info[:2] <= (3, 13):
  sys.exit(
      "placeto_tf needs Python 3.9 to 3.13 (TensorFlow has no wheels for newer ones), found "
      f"{sys.version_info[0]}.{sys.version_info[1]}; install one of these, for example with "
      "'apt install python3.13 python3.13-venv' or 'uv python install 3.13', and use it instead.")

from setuptools import find_packages, setup  # noqa: E402  pylint: disable=wrong-import-position

# Read, not imported: the package's own imports are not there while it is installed.
VERSION = re.search(
    r'^__version__ = "(.+)"$', pathlib.Path("placeto_tf/__init__.py").read_text(encoding="utf-8"),
    re.MULTILINE).group(1)

# Tried with 2.51 on Python 3.9, the last that runs there, and with 2.60 on 3.11.
RAY = "ray>=2.51,<2.61"

# 1.1 is the last on Python 3.9.
GYMNASIUM = "gymnasium>=0.29,<2"

PROGRAMS = (
    "calibrate", "check_here", "evaluate", "make_graphs", "measure", "place", "simulate", "train")

setup(
    name="placeto_tf",
    version=VERSION,
    description="Learned device placement for TensorFlow graphs",
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.9,<3.14",
    packages=find_packages(include=["placeto_tf", "placeto_tf.*"]) + ["placeto_tf.scripts"],
    # The programs live at the top level for those who read the tree. For the console programs
    # below they are installed as a subpackage, so that they cannot collide with anybody else's
    # `scripts`; nothing in the tree imports them by that name.
    package_dir={"placeto_tf.scripts": "scripts"},
    package_data={
        "placeto_tf": ["py.typed", "training_requirements.txt"],
        "placeto_tf.clusters": ["kernels.json"],
        "placeto_tf.encoding": ["schema.pbtxt"],
        "placeto_tf.policies.placeto": ["weights/*"]},
    install_requires=[
        "absl-py>=1.0",
        "matplotlib>=3.5",
        "numba>=0.59",
        "numpy>=1.23,<3",
        # 2.3 is the last on Python 3.9.
        "pandas>=2.0,<4",
        "pymetis>=2023.1",
        "scipy>=1.9",
        # TensorBoard up to 2.20 imports pkg_resources, which setuptools 82 removed.
        "setuptools<82",
        "tensorboard>=2.15",
        "tensorflow>=2.15,<2.22; python_version < '3.12'",
        # For the TensorFlow Probability that runs there.
        "tensorflow>=2.18,<2.22; python_version >= '3.12'",
        # The legacy Keras of the same version as TensorFlow.
        "tf-keras>=2.15,<2.22",
        "tqdm>=4.60",
    ],
    # tf-agents and TensorFlow GNN, which train, stand in placeto_tf/training_requirements.txt.
    extras_require={
        "gym": [GYMNASIUM],
        # What pip can resolve: elsewhere training_requirements.txt, which with_env installs without
        # the dependencies that tf-agents declares and does not need.
        "train": ["numpy<2; python_version < '3.12'",
                  "tf-agents>=0.19,<0.20; python_version < '3.12'",
                  "tensorflow-gnn>=1.0.3,<1.1; python_version < '3.12'"],
        "ray": [RAY],
        "scotch": ["pyscotch>=7.0.5,<8; platform_system == 'Linux'"],
        "test": [GYMNASIUM, "hypothesis>=6", "mypy>=1.8,<2", "pytest>=7", "pytest-xdist>=3.8", RAY,
                 "ruff>=0.12,<1"]},
    entry_points={
        "console_scripts": [f"placeto-{p}=placeto_tf.scripts.{p}:run" for p in PROGRAMS],
    },
)
