package sparkdl.comm.transport

import java.io.File

import org.apache.hadoop.conf.Configuration

/** Local directory and Hadoop conf of the Spark executor that the plugin runs in. */
trait ExecutorEnvironment {

  /** First of the executor's block directories. Python workers find them in SPARK_LOCAL_DIRS. */
  def localDirectory: File

  /** Conf of Hadoop's file systems: the cluster's files and spark.hadoop.* of the application's conf. */
  def hadoopConf: Configuration
}
