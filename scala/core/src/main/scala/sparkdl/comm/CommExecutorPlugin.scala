package sparkdl.comm

import java.util.{Map => JMap}

import scala.util.control.NonFatal

import org.apache.logging.log4j.Level
import org.apache.logging.log4j.core.config.Configurator
import org.apache.spark.api.plugin.{ExecutorPlugin, PluginContext}

import sparkdl.comm.bridge.BridgeServer
import sparkdl.comm.ps.PsNode

/** Brings the parameter server and its bridge up with the executor, and down with it. */
final class CommExecutorPlugin extends ExecutorPlugin {
  private var node: PsNode = _
  private var bridge: BridgeServer = _

  override def init(context: PluginContext, extraConf: JMap[String, String]): Unit = {
    // Spark logs each block that it stores; with some blocks per iteration that is hundreds of megabytes an hour.
    Configurator.setLevel("org.apache.spark.storage.memory.MemoryStore", Level.WARN)
    node = new PsNode(context.conf, context.metricRegistry)
    try bridge = new BridgeServer(node)
    catch {
      case NonFatal(e) =>
        node.close()
        throw e
    }
  }

  override def shutdown(): Unit = {
    if (bridge != null) bridge.close()
    if (node != null) node.close()
  }
}
