package sparkdl.comm.bridge

import java.nio.channels.SocketChannel
import java.util.concurrent.{Executors, ThreadFactory}
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.FileStatus
import org.slf4j.LoggerFactory

import sparkdl.comm.{Build, CommException}
import sparkdl.comm.ibatch.{Batch, PlanRequest}
import sparkdl.comm.ps.{BlockEncoding, Encodings, MappedSegment, Peer, PsNode, PsSession, SegmentMap, Transfer}
import sparkdl.comm.transport.BlockServer

/**
 * One connection of a Python worker, hence at most one rank; a worker may have another one for its files, which needs no rank.
 * Requests are answered in order. A thread of its own does those that may wait, while the one that reads them keeps reading,
 * so that a worker's death is seen and ends that wait. Those in [[BridgeConnection.Posted]] never wait and get no answer: if
 * one fails, the next request is answered with that.
 */
final class BridgeConnection(channel: SocketChannel, node: PsNode, hadoopConf: => Configuration) {
  import BridgeConnection._

  private val operations = Executors.newSingleThreadExecutor(operationThread)
  @volatile private var session: Option[PsSession] = None
  @volatile private var workerGone = false
  private val underWay = new AtomicInteger // operations that `operations` has yet to end
  private var failedPost: Option[ObjectNode] = None
  private val files = new HadoopFiles(hadoopConf, () => workerGone)

  def run(): Unit =
    try Iterator.continually(Frames.read(channel)).takeWhile(_.isDefined).flatten.foreach { request =>
        val op = request.path("op").asText
        if (Posted(op) && underWay.get == 0) answer(op, request) // saves waking another thread
        else {
          underWay.incrementAndGet()
          operations.execute { () =>
            answer(op, request)
            underWay.decrementAndGet()
          }
        }
      }
    finally {
      workerGone = true
      session.foreach(open => open.fail(new CommException("Closed", s"the Python worker of rank ${open.rank} is gone")))
      operations.execute { () =>
        try leave()
        catch { case NonFatal(e) => log.error("A session could not be closed", e) }
      }
      operations.shutdown()
    }

  private def answer(op: String, request: JsonNode): Unit =
    if (Posted(op)) {
      if (failedPost.isEmpty) failedPost = Some(attempt(op, request)).filterNot(_.get("ok").asBoolean)
    } else {
      val reply = failedPost.getOrElse(attempt(op, request))
      failedPost = None
      try Frames.write(channel, reply)
      catch { case e: java.io.IOException => log.debug("The worker left before its answer: {}", e.toString) }
    }

  private def attempt(op: String, request: JsonNode): ObjectNode = {
    val reply = Frames.newObject()
    try {
      perform(op, request, reply)
      reply.put("ok", true)
    } catch {
      case e: CommException => refusal(op, e.kind, e.getMessage).put("peer", e.peer)
      case e: IllegalArgumentException => refusal(op, "Protocol", e.getMessage)
      case NonFatal(e) =>
        log.error("A bridge request failed", e)
        refusal(op, "Internal", e.toString)
    }
  }

  private def refusal(op: String, kind: String, message: String): ObjectNode =
    Frames.newObject().put("ok", false).put("op", op).put("error", kind).put("message", message)

  private def perform(op: String, request: JsonNode, reply: ObjectNode): Unit = op match {
    case "hello" => hello(request, reply)
    case "open" => open(request, reply)
    case "attach" => current.attach(MappedSegment.map(text(request, "path"), _), batches(request, "pull"), batches(request, "push"))
    case "plan" => PlanRequest.answer(request, reply)
    case "cut" => current.cut(batches(request, "pull"), batches(request, "push"))
    case "publish" => current.publish(number(request, "version"), batch(request))
    case "prefetch" => current.prefetch(number(request, "version"))
    case "pull" => report(current.pull(number(request, "version"), batch(request)), reply)
    case "push" => current.push(number(request, "version"), batch(request))
    case "collect" => report(current.collect(number(request, "version"), batch(request)), reply)
    case "close" => leave()
    case "fs.put" => files.put(text(request, "local"), text(request, "remote"))
    case "fs.get" => files.get(text(request, "remote"), text(request, "local"))
    case "fs.list" => describe(files.list(text(request, "remote")), reply)
    case "fs.rename" => files.rename(text(request, "from"), text(request, "to"))
    case "fs.delete" => files.delete(text(request, "remote"), flag(request, "recursive"))
    case "fs.exists" => reply.put("exists", files.exists(text(request, "remote")))
    case other =>
      throw new CommException(
        "Protocol",
        s"unknown request $other: install the Python package and the jar from one version"
      )
  }

  private def hello(request: JsonNode, reply: ObjectNode): Unit = {
    if (session.isDefined) throw new CommException("Protocol", "hello came twice")
    val protocol = number(request, "protocol")
    if (protocol != Protocol)
      throw new CommException(
        "Plugin",
        s"the Python package speaks bridge protocol $protocol and the jar $Protocol: install the two from one version"
      )
    session = Some(node.join(number(request, "job"), number(request, "rank").toInt))
    val (host, port) = node.address
    val here = node.blocks.here
    reply.put("build", Build.id).put("control_host", host).put("control_port", port)
    reply.put("block_host", here.host).put("block_port", here.port).put("executor_id", here.executorId)
  }

  private def open(request: JsonNode, reply: ObjectNode): Unit = {
    val described = elements(request, "peers")
    described.zipWithIndex.foreach { case (peer, rank) =>
      val build = text(peer, "build")
      if (build != Build.id)
        throw new CommException(
          "Plugin",
          s"the executor of rank $rank runs sparkdl-comm $build, and that of rank ${current.rank} ${Build.id}: all need the" +
            " same jar (spark.jars, or what lies on spark.executor.extraClassPath)",
          rank
        )
    }
    val peers = described.map { peer =>
      Peer(
        text(peer, "control_host"),
        number(peer, "control_port").toInt,
        BlockServer(text(peer, "block_host"), number(peer, "block_port").toInt, text(peer, "executor_id"))
      )
    }
    val layers = elements(request, "layers").map(_.asLong)
    val encodings = Encodings(BlockEncoding(text(request, "wire")))
    val map = current.open(peers, layers, encodings, flag(request, "ahead"), request.path("timeout").asDouble)
    describe(map, reply)
  }

  private def describe(map: SegmentMap, reply: ObjectNode): Unit = {
    reply.put("segment_bytes", map.bytes).put("fetch_above", node.blocks.fetchAbove)
    val parameters = reply.putArray("parameters_offsets")
    map.parameterBuffers.foreach(offset => parameters.add(offset))
    reply.put("gradients_offset", map.gradients)
    reply.put("summed_offset", map.summed).put("summed_version", SegmentMap.SummedVersion)
    val shard = reply.putArray("shard")
    map.shard.foreach { range =>
      shard.addObject().put("start", range.start).put("count", range.count).put("master_offset", map.master(range))
    }
  }

  private def describe(entries: Seq[FileStatus], reply: ObjectNode): Unit = {
    val array = reply.putArray("entries")
    entries.foreach { entry =>
      val described = array.addObject().put("name", entry.getPath.getName)
      described.put("is_directory", entry.isDirectory).put("length", entry.getLen)
    }
  }

  private def report(transfer: Transfer, reply: ObjectNode): Unit = {
    reply.put("bytes", transfer.bytes).put("aggregate_seconds", transfer.aggregateSeconds)
    transfer.sum.foreach(sum => reply.putArray("sum").add(sum.begun / 1e9).add(sum.ended / 1e9))
    val batches = reply.putArray("batches")
    transfer.batches.foreach { batch =>
      val blocks = batches.addArray()
      batch.foreach { block =>
        val fields = blocks.addArray().add(block.from)
        Seq(block.asked, block.begun, block.ended).foreach(nanos => fields.add(nanos / 1e9))
        fields.add(block.bytes)
      }
    }
  }

  private def leave(): Unit =
    try session.foreach(_.close())
    finally session = None

  private def current: PsSession =
    session.getOrElse(throw new CommException("Protocol", "hello has to come first"))

  private def text(message: JsonNode, field: String): String = present(message, field, _.isTextual).asText

  private def number(message: JsonNode, field: String): Long = present(message, field, _.isIntegralNumber).asLong

  private def flag(message: JsonNode, field: String): Boolean = present(message, field, _.isBoolean).asBoolean

  private def elements(message: JsonNode, field: String): IndexedSeq[JsonNode] =
    present(message, field, _.isArray).elements.asScala.toIndexedSeq

  private def batch(message: JsonNode): Int = number(message, "batch").toInt

  private def batches(message: JsonNode, field: String): IndexedSeq[Batch] =
    elements(message, field).map(pair => Batch(pair.path(0).asInt, pair.path(1).asInt))

  private def present(message: JsonNode, field: String, right: JsonNode => Boolean): JsonNode = {
    val value = message.path(field)
    if (!right(value)) throw new CommException("Protocol", s"field $field is missing or has the wrong type: $value")
    value
  }
}

object BridgeConnection {
  val Protocol = 6L

  /** What holds nothing in its answer, and is done many times in an iteration. */
  private val Posted = Set("cut", "publish", "prefetch", "push")
  private val log = LoggerFactory.getLogger(classOf[BridgeConnection])

  private val operationThread: ThreadFactory = task => {
    val thread = new Thread(task, "sparkdl-bridge-operations")
    thread.setDaemon(true)
    thread
  }
}
