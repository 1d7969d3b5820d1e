"""BigDL (DLlib) models, trained over the parameter server of this package.

- :mod:`.installation`: where BigDL and this package's adapter for it are, and whether they can run here
- :mod:`.engine`: BigDL's engine in a Spark session
- :mod:`.optimizer`: ``IBatchOptimizer``, in the place of BigDL's ``DistriOptimizer``
- :mod:`.estimator`: ``BigDLEstimator``, which fits a model to a DataFrame
- :mod:`.model`: ``BigDLModel``, which comes of that
- :mod:`.networks`: some networks

BigDL 2.4.0 runs on Spark 3.5 with Scala 2.12 and Java up to 17, and its Python API with numpy below 2.3. Its pins of other
packages are older than what runs here: ``pip install --no-deps bigdl-dllib-spark3==2.4.0 bigdl-core==2.3.0 six``. Nothing of
BigDL is imported before :func:`~sparkdl_comm.bigdl.engine.start_engine` has looked at all that.
"""
