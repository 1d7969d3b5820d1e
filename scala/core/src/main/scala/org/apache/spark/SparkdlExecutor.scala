// SPDX-License-Identifier: Apache-2.0

package org.apache.spark

import java.io.File

import org.apache.hadoop.conf.Configuration

import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.storage.{SparkdlBlocks, SparkdlChunks}

import sparkdl.comm.chunks.ChunkNode
import sparkdl.comm.transport.{
  Blocks,
  ChunkNetwork,
  ExecutorEnvironment,
  PeerMessageReceiver,
  Transport
}

/**
 * Executor that runs in this JVM.
 *
 * The plugin uses names that Spark's module core declares `private[spark]` in three classes only:
 * this class, [[SparkdlBlocks]] and [[SparkdlChunks]]. It also uses two parts of Spark that are
 * public but no stable API: the module network-common, in the package sparkdl.comm.chunks, and the
 * trait `Logging`, in all classes that log.
 */
final class SparkdlExecutor(conf: SparkConf) extends Transport with ExecutorEnvironment {
  private val env = SparkEnv.get

  override val blocks: Blocks = new SparkdlBlocks(env)

  /**
   * Host of this JVM: that of Spark's RpcEnv, or of the block manager if the RpcEnv has no address.
   * On an executor the RpcEnv has none. In local mode the block manager is not up yet.
   */
  override def host: String =
    Option(env.rpcEnv.address).fold(env.blockManager.blockManagerId.host)(_.host)

  override def localDirectory: File = env.blockManager.diskBlockManager.localDirs.head

  override lazy val hadoopConf: Configuration = SparkHadoopUtil.get.newConfiguration(conf)

  override def openNetwork(
      firstPort: Int,
      portCount: Int,
      receiver: PeerMessageReceiver
  ): ChunkNetwork =
    ChunkNode.open(
      new SparkdlChunks(env, conf, bindAddress),
      host,
      env.executorId,
      firstPort,
      portCount,
      receiver
    )

  private def bindAddress: String =
    if (env.executorId == SparkContext.DRIVER_IDENTIFIER) conf.get("spark.driver.bindAddress", host)
    else host
}
