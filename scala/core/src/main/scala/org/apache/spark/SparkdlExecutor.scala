package org.apache.spark

import java.io.File

import org.apache.hadoop.conf.Configuration

import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.rpc.SparkdlControl
import org.apache.spark.storage.SparkdlBlocks

import sparkdl.comm.transport.{Blocks, ControlPlane, ControlReceiver, ExecutorEnvironment, Transport}

/**
 * The executor that runs in this JVM. This file, SparkdlBlocks and SparkdlControl are the only ones of the plugin that touch
 * names which are internal to Spark.
 */
final class SparkdlExecutor(conf: SparkConf) extends Transport with ExecutorEnvironment {
  private val env = SparkEnv.get

  override val blocks: Blocks = new SparkdlBlocks(env)

  /** On a local-mode driver the block manager is not up yet, and on an executor Spark's RpcEnv has no address. */
  override def host: String = Option(env.rpcEnv.address).fold(blocks.here.host)(_.host)

  override def localDirectory: File = env.blockManager.diskBlockManager.localDirs.head

  override lazy val hadoopConf: Configuration = SparkHadoopUtil.get.newConfiguration(conf)

  override def openControl(firstPort: Int, portCount: Int, receiver: ControlReceiver): ControlPlane =
    SparkdlControl.open(env, conf, host, firstPort, portCount, receiver)
}
