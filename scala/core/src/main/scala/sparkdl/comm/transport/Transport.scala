package sparkdl.comm.transport

import java.io.File

import org.apache.hadoop.conf.Configuration

/** What the plugin has from the Spark executor that it runs in. */
trait Transport {

  /** The host name or address under which this JVM is reached. */
  def host: String

  /** The first of the executor's directories for blocks, which Python workers are told as SPARK_LOCAL_DIRS. */
  def localDirectory: File

  /** How Hadoop's file systems are reached: the cluster's files and spark.hadoop.* of the application's conf. */
  def hadoopConf: Configuration

  def blocks: Blocks

  /**
   * Opens this executor's own way to be called, on the first free one of `portCount` ports from `firstPort` (0: any). It has
   * Spark's authentication and encryption, as Spark's conf sets them.
   */
  def openControl(firstPort: Int, portCount: Int, receiver: ControlReceiver): ControlPlane
}
