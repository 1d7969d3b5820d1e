"""Build commands; everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildPyWithJars(build_py):
    """Puts the plugin's jars (one per Spark line) into the package, if Maven has built them."""

    def run(self) -> None:
        scala = ROOT / "scala"
        built = sorted(scala.glob("core/target/spark-*/sparkdl-comm-spark*.jar"))
        built += sorted(scala.glob("bigdl/target/spark-*/sparkdl-comm-bigdl-spark*.jar"))
        jars = ROOT / "sparkdl_comm" / "jars"
        if built:
            shutil.rmtree(jars, ignore_errors=True)
            jars.mkdir(parents=True)
            for jar in built:
                shutil.copy2(jar, jars)
        super().run()


setup(cmdclass={"build_py": BuildPyWithJars})
