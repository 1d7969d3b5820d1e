package sparkdl.comm.ps

import java.util.concurrent.{
  CompletableFuture,
  CompletionException,
  CompletionStage,
  ConcurrentHashMap,
  ExecutionException,
  TimeUnit,
  TimeoutException
}
import java.util.function.{Function => JFunction}

import org.slf4j.LoggerFactory

import sparkdl.comm.CommException
import sparkdl.comm.transport.{BlockServer, ControlPeer}

/** A rank as the others reach it. */
final case class Peer(controlHost: String, controlPort: Int, blocks: BlockServer)

/** How long an operation took, in seconds, and what came over the network for it, in bytes. */
final case class Transfer(seconds: Double, bytes: Long, aggregateSeconds: Double = 0)

/**
 * One rank of a synchronous parameter server: worker and server of the shard with its number.
 *
 * An iteration is publish(v), pull(v), push(v), then publish(v + 1) with the optimizer's update in between. All is BSP, and
 * that is what makes the memory safe to reuse: a server has every rank's gradients of version v only when every rank has
 * pulled all of v, so push(v) ends by retiring the blocks of v, and only then may the optimizer write. A worker has version
 * v + 1 only when every server has fetched its gradients of v, so pull(v + 1) ends by retiring those.
 *
 * Operations are called by one thread. Notices and transfers complete on others.
 */
final class PsSession(val job: Long, val rank: Int, node: PsNode) {
  import PsSession._

  private val notices = new ConcurrentHashMap[(Notice.Kind, Int, Long), CompletableFuture[Void]]
  private val failed = new CompletableFuture[Nothing]
  private val published = ConcurrentHashMap.newKeySet[String]

  @volatile private var peers: IndexedSeq[Peer] = IndexedSeq.empty
  private var controls: Map[Int, ControlPeer] = Map.empty
  private var timeoutSeconds = 0.0
  private var map: SegmentMap = _
  private var segment: Segment = _
  private var math: ShardMath = _
  private var pulling: Flight = _
  private var collecting: Flight = _
  private var warnedOfSpill = false

  private def others: Seq[Int] = peers.indices.filter(_ != rank)

  /** Agrees on who takes part and on what lies where. The worker makes a segment of `map.bytes` next and calls [[attach]]. */
  def open(peers: IndexedSeq[Peer], layers: IndexedSeq[Long], wire: WireFormat, timeoutSeconds: Double): SegmentMap = {
    if (map != null) throw new CommException("Protocol", "open was called twice")
    if (!peers.indices.contains(rank))
      throw new CommException("Protocol", s"rank $rank is not one of the ${peers.size} peers")
    this.peers = peers
    this.timeoutSeconds = timeoutSeconds
    controls = others.map { other =>
      checkNotFailed()
      other -> node.connect(other, peers(other).controlHost, peers(other).controlPort)
    }.toMap
    map = new SegmentMap(new ShardLayout(layers, peers.size), rank, wire)
    map
  }

  def attach(path: String): Unit = {
    if (map == null || segment != null) throw new CommException("Protocol", "attach comes once, and after open")
    segment = Segment.map(path, map.bytes)
    math = new ShardMath(segment, map)
    collecting = collect(0)
  }

  /** The shard's values of `version` are in place: serve them, and begin to fetch the other shards' as they come. */
  def publish(version: Long): Unit = {
    checkUsable()
    map.wire match {
      case half: WireFormat.Half => math.stageMaster(half, map.master.get)
      case WireFormat.Fp32 => math.stage(map.parameters, map.shard, map.shardStaging)
    }
    put(BlockNames.parameters(rank, Whole, version), map.parameters, map.shard, map.shardStaging)
    others.foreach(tell(_, Notice.Parameters, version))
    pulling = prefetch(version)
  }

  /** Waits until the parameters of `version` are here. */
  def pull(version: Long): Transfer = {
    checkUsable()
    val transfer = finish(pulling, "pull", version, Notice.Parameters)
    map.wire match {
      case half: WireFormat.Half => others.foreach(other => math.unpack(half, map.pullbox(other), map.shapes(other)))
      case WireFormat.Fp32 => ()
    }
    if (version > 0) others.foreach(server => retire(BlockNames.gradients(rank, server, Whole, version - 1)))
    node.metrics.pulledBytes.inc(transfer.bytes)
    node.metrics.pullTime.update((transfer.seconds * 1e9).toLong, TimeUnit.NANOSECONDS)
    transfer
  }

  /** Gives this rank's gradients of `version` to the servers, and waits until this rank's shard has the sum of all. */
  def push(version: Long): Transfer = {
    checkUsable()
    val begin = System.nanoTime
    others.foreach { server =>
      val staging = map.gradientStaging(server)
      math.stage(map.gradients, map.shapes(server), staging)
      put(BlockNames.gradients(rank, server, Whole, version), map.gradients, map.shapes(server), staging)
      tell(server, Notice.Gradients, version)
    }
    val transfer = finish(collecting, "push", version, Notice.Gradients)
    val arrived = System.nanoTime
    math.reduce()
    val reduced = System.nanoTime
    retire(BlockNames.parameters(rank, Whole, version))
    collecting = collect(version + 1)
    node.metrics.pushedBytes.inc(transfer.bytes)
    node.metrics.pushTime.update(arrived - begin, TimeUnit.NANOSECONDS)
    node.metrics.aggregateTime.update(reduced - arrived, TimeUnit.NANOSECONDS)
    Transfer((arrived - begin) / 1e9, transfer.bytes, (reduced - arrived) / 1e9)
  }

  def noticed(notice: Notice): Unit = arrival(notice.kind, notice.from, notice.version).complete(null)

  def peerLost(host: String, port: Int): Unit =
    peers.indices
      .find(peer => peer != rank && peers(peer).controlHost == host && peers(peer).controlPort == port)
      .foreach(peer => fail(new CommException("PeerLost", s"the executor of rank $peer ($host:$port) is gone", peer)))

  /** Ends every wait of this session, now and later, with `cause`. The first cause stays. */
  def fail(cause: CommException): Unit = failed.completeExceptionally(cause)

  /**
   * Retires everything and gives the memory back. The other ranks must be done with this one's blocks, or be failing. Called
   * by the thread that runs the operations.
   */
  def close(): Unit = {
    fail(new CommException("Closed", s"rank $rank left"))
    if (retireAll(CloseSeconds)) free()
    else {
      log.warn("A peer still reads blocks of rank {}; they are given {} s more", rank, LingerSeconds)
      node.pool.execute(() => if (retireAll(LingerSeconds)) free())
    }
    node.leave(this)
  }

  private def retireAll(seconds: Long): Boolean = {
    val deadline = System.nanoTime + TimeUnit.SECONDS.toNanos(seconds)
    published.removeIf(name => node.blocks.retire(job, name, deadline))
    published.isEmpty
  }

  private def free(): Unit = if (segment != null) segment.close()

  private def collect(version: Long): Flight = new Flight(others.map { worker =>
    val sink = new SegmentSink(segment, IndexedSeq((map.inbox(worker), map.shard.count * map.wire.bytes)))
    fetch(worker, Notice.Gradients, BlockNames.gradients(worker, rank, Whole, version), version, sink)
  })

  private def prefetch(version: Long): Flight = new Flight(others.map { server =>
    val shape = map.shapes(server)
    val targets =
      if (map.wire == WireFormat.Fp32) shape.ranges.map(range => (map.parameters + range.start * 4, range.count * 4))
      else IndexedSeq((map.pullbox(server), shape.count * 2))
    fetch(
      server,
      Notice.Parameters,
      BlockNames.parameters(server, Whole, version),
      version,
      new SegmentSink(segment, targets)
    )
  })

  private def fetch(from: Int, kind: Notice.Kind, name: String, version: Long, sink: SegmentSink): Part = {
    val server = peers(from).blocks
    val start: JFunction[Void, CompletionStage[Void]] = _ => node.blocks.fetch(server, job, name, sink)
    // Whoever waits for this part sees it end only after the session knows why it failed.
    val done = arrival(kind, from, version)
      .thenComposeAsync[Void](start, node.pool)
      .whenComplete((_, cause) => if (cause != null) fail(describe(cause, name, from)))
    val overNetwork = if (server.executorId == peers(rank).blocks.executorId) 0L else sink.bytes
    new Part(from, done, overNetwork)
  }

  private def arrival(kind: Notice.Kind, from: Int, version: Long): CompletableFuture[Void] =
    notices.computeIfAbsent((kind, from, version), _ => new CompletableFuture[Void])

  private def finish(flight: Flight, what: String, version: Long, kind: Notice.Kind): Transfer = {
    val begin = System.nanoTime
    try CompletableFuture.anyOf(flight.all, failed).get((timeoutSeconds * 1e9).toLong, TimeUnit.NANOSECONDS)
    catch {
      case e: ExecutionException => throw known(e.getCause)
      case _: TimeoutException =>
        val missing = flight.parts.filterNot(_.done.isDone)
        throw new CommException(
          "Deadline",
          s"rank $rank waited $timeoutSeconds s for ${missing.map(_.from).mkString("rank ", ", rank ", "")}" +
            s" in $what of version $version (${missing.map(_.bytes).sum} bytes); a rank that needs longer than that" +
            " for a step needs a larger spark.sparkdl.comm.timeout",
          missing.headOption.fold(-1)(_.from)
        )
    }
    others.foreach(other => notices.remove((kind, other, version)))
    Transfer((System.nanoTime - begin) / 1e9, flight.parts.map(_.bytes).sum)
  }

  private def known(cause: Throwable): Throwable = if (failed.isCompletedExceptionally) firstFailure else cause

  private def firstFailure: Throwable =
    try failed.join()
    catch { case e: CompletionException => e.getCause }

  private def describe(cause: Throwable, name: String, from: Int): CommException = cause match {
    case known: CommException => known
    case wrapped: CompletionException if wrapped.getCause != null => describe(wrapped.getCause, name, from)
    case other =>
      new CommException("PeerLost", s"rank $rank could not fetch block $name from rank $from: $other", from, other)
  }

  private def put(name: String, source: Long, shape: BlockShape, staging: Long): Unit = {
    val staged =
      if (map.wire == WireFormat.Fp32) segment.slices(staging, shape.packedCount * 4)
      else segment.slices(staging, shape.count * 2)
    val direct =
      if (map.wire == WireFormat.Fp32)
        shape.direct.flatMap(range => segment.slices(source + range.start * 4, range.count * 4))
      else Nil
    published.add(name)
    node.blocks.put(job, name, staged ++ direct)
    if (!warnedOfSpill && node.blocks.status(job, name).exists { case (_, disk) => disk > 0 }) {
      warnedOfSpill = true
      log.warn(
        "Spark has no storage memory for block {} of {} bytes and keeps it on disk, which makes every iteration slow:" +
          " raise spark.executor.memory (blocks of a rank take as much storage memory as the model)",
        name,
        shape.count * map.wire.bytes
      )
    }
  }

  private def retire(name: String): Unit = {
    val deadline = System.nanoTime + (timeoutSeconds * 1e9).toLong
    if (!node.blocks.retire(job, name, deadline, () => failed.isDone)) {
      checkNotFailed()
      throw new CommException("Deadline", s"a reader still held block $name of rank $rank after $timeoutSeconds s")
    }
    published.remove(name)
  }

  private def tell(to: Int, kind: Notice.Kind, version: Long): Unit =
    controls(to).send(Notice(job, to, rank, kind, Whole, version))

  private def checkUsable(): Unit = {
    if (segment == null) throw new CommException("Protocol", "no segment is attached")
    checkNotFailed()
  }

  private def checkNotFailed(): Unit = if (failed.isCompletedExceptionally) throw firstFailure
}

object PsSession {

  /** The batch number of a pull or push of everything at once. */
  private val Whole = 0

  private val CloseSeconds = 2L
  private val LingerSeconds = 300L
  private val log = LoggerFactory.getLogger(classOf[PsSession])

  /** One block under way from rank `from`; `bytes` of it cross the network. */
  private final class Part(val from: Int, val done: CompletableFuture[Void], val bytes: Long)

  private final class Flight(val parts: Seq[Part]) {
    val all: CompletableFuture[Void] = CompletableFuture.allOf(parts.map(_.done): _*)
  }
}
