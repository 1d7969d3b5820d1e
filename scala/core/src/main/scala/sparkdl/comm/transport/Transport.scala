// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.transport

import java.io.{File, IOException}
import java.nio.ByteBuffer

import org.apache.hadoop.conf.Configuration

/** Network and blocks of this executor. */
trait Transport {

  /** Host name or address under which this JVM is reached. */
  def host: String

  def blocks: Blocks

  /**
   * Open this executor's endpoint on the first free one of `portCount` ports from `firstPort` on
   * (0: any). It authenticates and encrypts as Spark's conf says.
   *
   * @throws java.net.BindException if none of the ports is free
   */
  def openNetwork(firstPort: Int, portCount: Int, receiver: PeerMessageReceiver): ChunkNetwork
}

/**
 * Wrapper of Spark's transport, which the plugin loads with java.util.ServiceLoader. The plugin's
 * own jar has none. The jar of the benchmarks has one that emulates slow connections.
 */
trait TransportWrapper {
  def wrap(transport: Transport): Transport
}

/** Local directory and Hadoop conf of the Spark executor that the plugin runs in. */
trait ExecutorEnvironment {

  /** First of the executor's block directories. Python workers find them in SPARK_LOCAL_DIRS. */
  def localDirectory: File

  /**
   * Conf of Hadoop's file systems: the cluster's files and spark.hadoop.* of the application's
   * conf.
   */
  def hadoopConf: Configuration
}

/** Blocks that this executor serves. A job and a name identify a block. */
trait Blocks {

  /**
   * Inline threshold in bytes: blocks up to this size travel inside the message about them, because
   * a fetch costs more.
   */
  def inlineThreshold: Long

  /** Spark's id of this executor. */
  def executorId: String

  /**
   * Publish `chunks` in place, without a copy. If Spark has no free memory, the block goes to disk.
   * Under memory pressure it may move there; it is never dropped. The caller's memory stays valid
   * in both cases.
   */
  def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit

  /**
   * Remove the block once no reader is left.
   *
   * @param isOver polled while readers are left; true ends the wait. At least one attempt is made
   * @return false if readers were left in the end
   */
  def retire(job: Long, name: String, isOver: () => Boolean): Boolean

  /** Return the block's bytes in memory and on disk; None if this executor does not have it. */
  def status(job: Long, name: String): Option[(Long, Long)]

  /**
   * Read a block of this executor piece by piece.
   *
   * @param take called for each piece, in order
   * @throws IOException if this executor does not have the block
   */
  def read(job: Long, name: String)(take: ByteBuffer => Unit): Unit
}
