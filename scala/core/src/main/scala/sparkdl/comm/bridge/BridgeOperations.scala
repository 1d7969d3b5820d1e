// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.FileStatus

import sparkdl.comm.{Build, CommException, SpareMemory}
import sparkdl.comm.ibatch.{AdaptiveBuckets, DirectionProfile, RankReport}
import sparkdl.comm.ps.{
  BlockEncoding,
  Encodings,
  PsNode,
  PsSession,
  SegmentMap,
  SessionSettings,
  ShardLayout,
  Transfer
}
import sparkdl.comm.transport.ChunkPeer

/** Operations of one Python worker. Call [[perform]] and [[leave]] one at a time. */
private[bridge] final class BridgeOperations(node: PsNode, hadoopConf: => Configuration) {
  import BridgeRequest._

  @volatile private var session: Option[PsSession] = None
  private var buckets: Option[AdaptiveBuckets] = None
  @volatile private var hasWorkerLeft = false
  private val files = new HadoopFiles(hadoopConf, () => hasWorkerLeft)

  /** End all waits and copies, because the worker is gone. Call it at any time, on any thread. */
  def abort(): Unit = {
    hasWorkerLeft = true
    session.foreach(open =>
      open.fail(new CommException(
        CommException.Closed,
        s"the Python worker of rank ${open.rank} is gone"
      ))
    )
  }

  def leave(): Unit =
    try session.foreach(_.close())
    finally session = None

  /**
   * Carry out a request.
   *
   * @return the fields of the answer
   */
  def perform(request: BridgeRequest): ObjectNode = {
    val reply = Frames.newObject()
    request match {
      case request: Hello => hello(request, reply)
      case request: Open => open(request, reply)
      case Attach(path) => requireSession.attach(path, requireBuckets.pulls, requireBuckets.pushes)
      case Measured(computing) => describe(requireSession.report(computing), reply)
      case Replan(reports) => replan(reports, reply)
      case ReportBatching => requireBuckets.report(reply)
      case Cut(pull, push) => requireSession.transfers.cut(pull, push)
      case Publish(version, batch) => requireSession.transfers.publish(version, batch)
      case Prefetch(version) => requireSession.transfers.prefetch(version)
      case Pull(version, batch) => report(requireSession.transfers.pull(version, batch), reply)
      case Push(version, batch) => requireSession.transfers.push(version, batch)
      case Collect(version, batch) =>
        report(requireSession.transfers.collect(version, batch), reply)
      case Close => leave()
      case PutFile(local, remote) => files.put(local, remote)
      case GetFile(remote, local) => files.get(remote, local)
      case ListFiles(remote) => describe(files.list(remote), reply)
      case RenameFile(from, to) => files.rename(from, to)
      case DeleteFile(remote, recursive) => files.delete(remote, recursive)
      case FileExists(remote) => reply.put("exists", files.exists(remote))
    }
    reply
  }

  private def requireSession: PsSession =
    session.getOrElse(throw new CommException(CommException.Protocol, "hello has to come first"))

  private def requireBuckets: AdaptiveBuckets =
    buckets.getOrElse(throw new CommException(CommException.Protocol, "open has to come first"))

  private def hello(request: Hello, reply: ObjectNode): Unit = {
    if (session.isDefined) throw new CommException(CommException.Protocol, "hello was called twice")
    val ours = BridgeConnection.Protocol
    if (request.protocol != ours)
      throw new CommException(
        CommException.Plugin,
        s"the Python package has bridge protocol ${request.protocol}, but the jar $ours: install" +
          " both from one version"
      )
    session = Some(node.join(request.job, request.rank))
    val ChunkPeer(host, port, executor) = node.address
    reply.put("build", Build.id).put("host", host).put("port", port).put("executor", executor)
    val spare = node.spareMemory
    reply.put("spare_host", spare.host).put("spare_executor", spare.executor)
  }

  private def open(request: Open, reply: ObjectNode): Unit = {
    Build.checkSame(request.builds, requireSession.rank)
    val encodings =
      Encodings(request.wire, if (request.density.isDefined) BlockEncoding.Sparse else request.wire)
    val batching = request.batching
    val obstacle = if (batching.isPlanned) lackOfMemory(request, encodings) else None
    val pullsAhead = request.canPullAhead && batching.canOverlap && obstacle.isEmpty
    val settings =
      SessionSettings(
        encodings,
        pullsAhead,
        request.sharesMemory,
        batching.isSequential,
        if (obstacle.isEmpty) batching.measuredSteps else None,
        request.timeoutSeconds
      )
    val map = requireSession.open(request.peers, request.layers, settings)
    describe(map, reply)
    val traffic = map.traffic(node.blocks.inlineThreshold, request.density.getOrElse(1.0))
    val adaptive = new AdaptiveBuckets(batching, traffic, node.clock, obstacle)
    buckets = Some(adaptive)
    reply.put("ahead", pullsAhead)
    describe(adaptive, reply)
  }

  /** Return why there is no memory for two versions of the parameters, equally on all ranks. */
  private def lackOfMemory(request: Open, encodings: Encodings): Option[String] =
    if (!request.canPullAhead) None
    else {
      val layout = new ShardLayout(request.layers, request.peers.size)
      val bytes = new SegmentMap(layout, 0, encodings, pullsAhead = true).bytes
      SpareMemory.shortage(bytes, request.peers.zip(request.spare))
    }

  private def replan(reports: IndexedSeq[RankReport], reply: ObjectNode): Unit = {
    reply.put("planned", requireBuckets.replan(reports).isDefined)
    describe(requireBuckets, reply)
  }

  private def describe(measured: RankReport, reply: ObjectNode): Unit = {
    def direction(name: String, profile: Option[DirectionProfile]): Unit = profile match {
      case Some(known) => describe(known, reply.putObject(name))
      case None => reply.putNull(name)
    }
    direction("pull", measured.pull)
    direction("push", measured.push)
    put("seconds", measured.seconds, reply)
  }

  private def describe(profile: DirectionProfile, reply: ObjectNode): Unit = {
    profile.compute.foldLeft(reply.putArray("compute"))(_.add(_))
    reply.put("startup", profile.startup).put("per_byte", profile.perByte)
    put("gap", profile.gap, reply)
    reply.put("sum", profile.sum).put("update", profile.update)
  }

  private def put(field: String, value: Option[Double], reply: ObjectNode): Unit = value match {
    case Some(known) => reply.put(field, known)
    case None => reply.putNull(field)
  }

  private def describe(buckets: AdaptiveBuckets, reply: ObjectNode): Unit = {
    Seq("pull" -> buckets.pulls, "push" -> buckets.pushes).foreach { case (direction, batches) =>
      val pairs = reply.putArray(direction)
      batches.foreach(batch => pairs.addArray().add(batch.first).add(batch.last))
    }
    buckets.nextReportStep match {
      case Some(step) => reply.put("next_look", step)
      case None => reply.putNull("next_look")
    }
  }

  private def describe(map: SegmentMap, reply: ObjectNode): Unit = {
    reply.put("segment_bytes", map.bytes)
    val parameters = reply.putArray("parameters_offsets")
    map.parameterBuffers.foreach(offset => parameters.add(offset))
    reply.put("gradients_offset", map.gradients)
    reply.put("summed_offset", map.summed).put("summed_version", SegmentMap.SummedVersion)
    val shard = reply.putArray("shard")
    map.shard.foreach { range =>
      shard.addObject().put("start", range.start).put("count", range.count).put(
        "master_offset",
        map.master(range)
      )
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
    transfer.buckets.foreach { bucket =>
      val blocks = batches.addArray()
      bucket.foreach { block =>
        val fields = blocks.addArray().add(block.from)
        Seq(block.requested, block.firstByte, block.lastByte).foreach(nanos =>
          fields.add(nanos / 1e9)
        )
        fields.add(block.bytes)
      }
    }
  }
}
