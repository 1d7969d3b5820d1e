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
 * Names that Spark's module core declares `private[spark]` are used only in this package: here, and
 * those of block storage in [[SparkdlBlocks]] and [[SparkdlChunks]]. Two other parts of Spark are
 * public but no stable API. The module network-common is used in the package sparkdl.comm.chunks.
 * The trait `Logging` is extended by all classes that log.
 */
final class SparkdlExecutor(conf: SparkConf) extends Transport with ExecutorEnvironment {
  private val env = SparkEnv.get

  override val blocks: Blocks = new SparkdlBlocks(env)

  /**
   * Host of this JVM. In local mode the driver's block manager is not up yet, and on an executor
   * Spark's RpcEnv has no address.
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
