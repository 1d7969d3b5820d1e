package sparkdl.comm.transport

import java.io.File

import org.apache.hadoop.conf.Configuration

/** What the plugin finds on the machine of the Spark executor that it runs in. */
trait ExecutorEnvironment {

  /** The first of the executor's directories for blocks, which Python workers are told as SPARK_LOCAL_DIRS. */
  def localDirectory: File

  /** How Hadoop's file systems are reached: the cluster's files and spark.hadoop.* of the application's conf. */
  def hadoopConf: Configuration
}
