// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import java.util.{Map => JMap, ServiceLoader}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.SparkdlExecutor
import org.apache.spark.api.plugin.{ExecutorPlugin, PluginContext}

import sparkdl.comm.bridge.BridgeServer
import sparkdl.comm.ps.PsNode
import sparkdl.comm.transport.{Transport, TransportWrapper}

/**
 * Plugin of an executor: starts the parameter server and its bridge with the executor, and stops
 * them with it.
 */
private[comm] final class CommExecutorPlugin extends ExecutorPlugin {
  private var bridge = Option.empty[BridgeServer]

  override def init(context: PluginContext, extraConf: JMap[String, String]): Unit = {
    val executor = new SparkdlExecutor(context.conf)
    val wrappers = ServiceLoader.load(classOf[TransportWrapper], getClass.getClassLoader).asScala
    val transport = wrappers.foldLeft[Transport](executor)((inner, wrapper) => wrapper.wrap(inner))
    val node = new PsNode(transport, CommConf(context.conf), context.metricRegistry)
    try bridge = Some(new BridgeServer(node, executor))
    catch {
      case NonFatal(e) =>
        node.close()
        throw e
    }
    CommExecutorPlugin.runningNode = Some(node)
  }

  override def shutdown(): Unit = {
    val node = CommExecutorPlugin.runningNode
    CommExecutorPlugin.runningNode = None
    bridge.foreach(_.close())
    node.foreach(_.close())
  }
}

private[comm] object CommExecutorPlugin {
  @volatile private var runningNode = Option.empty[PsNode]

  /**
   * Return the node of the executor in this JVM, for ranks that run in it.
   *
   * @throws CommException of the kind Plugin, if the plugin is not loaded
   */
  def node: PsNode = runningNode.getOrElse(throw new CommException(
    CommException.Plugin,
    "the plugin is not loaded in this executor: set spark.plugins=sparkdl.comm.CommPlugin and put" +
      " the jar into spark.jars"
  ))
}
