"""The Python worker's side of the parameter server that lives in its executor's JVM."""
