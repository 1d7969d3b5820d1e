// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import java.nio.channels.SocketChannel
import java.util.concurrent.{Executors, ThreadFactory}
import java.util.concurrent.atomic.AtomicInteger

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration

import org.apache.spark.internal.Logging

import sparkdl.comm.CommException
import sparkdl.comm.ps.PsNode

/**
 * Connection of one Python worker, and therefore of at most one rank. A worker may have another
 * connection for its files, which needs no rank. Requests are carried out in order. A separate
 * thread runs each request that may wait, while this thread keeps reading. So this thread notices
 * when the worker dies, and ends the wait.
 */
private[bridge] final class BridgeConnection(
    channel: SocketChannel,
    node: PsNode,
    hadoopConf: => Configuration
) extends Logging {
  import BridgeConnection._

  private val worker = Executors.newSingleThreadExecutor(operationThread)
  private val pendingRequests = new AtomicInteger // requests that `worker` has not finished
  private val operations = new BridgeOperations(node, hadoopConf)
  private var failedPost: Option[ObjectNode] = None

  def run(): Unit =
    try
      Iterator.continually(Frames.read(channel)).takeWhile(_.isDefined).flatten.foreach { request =>
        val name = request.path("op").asText
        val posted = BridgeRequest.isPosted(name)
        if (posted && pendingRequests.get == 0) post(name, request) // without waking another thread
        else {
          pendingRequests.incrementAndGet()
          worker.execute { () =>
            if (posted) post(name, request) else answer(name, request)
            pendingRequests.decrementAndGet()
          }
        }
      }
    finally {
      operations.abort()
      worker.execute { () =>
        try operations.leave()
        catch { case NonFatal(e) => logError("A session could not be closed", e) }
      }
      worker.shutdown()
    }

  private def post(name: String, request: JsonNode): Unit =
    if (failedPost.isEmpty)
      failedPost = Some(attempt(name, request)).filterNot(_.get("ok").asBoolean)

  private def answer(name: String, request: JsonNode): Unit = {
    val reply = failedPost.getOrElse(attempt(name, request))
    failedPost = None
    try Frames.write(channel, reply)
    catch { case e: java.io.IOException => logDebug(s"The worker left before its answer: $e") }
  }

  private def attempt(name: String, request: JsonNode): ObjectNode =
    try operations.perform(BridgeRequest.parse(request)).put("ok", true)
    catch {
      case e: CommException => refusal(name, e.kind, e.getMessage).put("peer", e.peer)
      case e: IllegalArgumentException => refusal(name, CommException.Protocol, e.getMessage)
      case NonFatal(e) =>
        logError("A bridge request failed", e)
        refusal(name, CommException.Internal, e.toString)
    }

  private def refusal(name: String, kind: CommException.Kind, message: String): ObjectNode =
    Frames.newObject().put("ok", false).put("op", name).put("error", kind.name).put(
      "message",
      message
    )
}

private[bridge] object BridgeConnection {
  val Protocol = 13L

  private val operationThread: ThreadFactory = task => {
    val thread = new Thread(task, "sparkdl-bridge-operations")
    thread.setDaemon(true)
    thread
  }
}
