"""Files and directories at local paths and in Hadoop's file systems.

``files.py`` defines the interface, and implements it for local paths and for the executor's Hadoop. ``session.py`` has the
storage of a Spark session: the driver's Hadoop, or an executor's for a Spark Connect client.
"""
