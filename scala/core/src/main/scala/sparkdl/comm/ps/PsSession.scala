package sparkdl.comm.ps

import java.util.concurrent.{CompletableFuture, TimeUnit}

import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

import sparkdl.comm.CommException
import sparkdl.comm.CommException.{Closed, Deadline, PeerLost, Protocol}
import sparkdl.comm.ibatch.{Batch, ComputingTimes, RankReport}
import sparkdl.comm.transport.ChunkPeer

/**
 * Rank of a synchronous parameter server: a worker, and the server of the shard with its number.
 *
 * An iteration on version v consists of these operations, each bucket by bucket. First pull(v). When all of v has
 * arrived, push(v) during backward. After backward: prefetch(v + 1), collect(v), the optimizer's update, publish(v +
 * 1). If parameters are pulled ahead, these four begin as soon as all of v has arrived, and go on during backward. The
 * iterations are bulk-synchronous, which makes the memory safe to reuse:
 *
 *  - A rank pushes gradients of v only after it has pulled all of v. So a server that has collected some gradients from
 *   every rank retires the blocks of v, and only then may the optimizer write.
 *  - A server publishes a bucket of v + 1 only after it has collected the gradients of its layers. So a rank that has
 *   pulled all of v + 1 retires its gradients of v, and only then may backward write the next ones.
 *  - Parameters of v + 1 arrive in the memory that forward and backward of v compute with, so prefetch comes after
 *   them. If parameters are pulled ahead, they arrive in the memory of v - 1.
 *
 * Call one operation at a time. Notices, transfers and sums complete on other threads.
 */
private[comm] final class PsSession(val job: Long, val rank: Int, node: PsNode) {
  import PsSession._

  private val clock = node.clock
  private[ps] val incoming = new IncomingBlocks(job, rank, node)
  private val outgoing = new OutgoingBlocks(job, rank, node, new BlockUrgencies(node))

  @volatile private var peers: IndexedSeq[ChunkPeer] = IndexedSeq.empty
  private var settings: SessionSettings = _
  private var map: SegmentMap = _
  private var segment: Segment = _
  private var blocks: SegmentBlocks = _

  // Slices of each bucket: by bucket, then server.
  private var pulls: IndexedSeq[IndexedSeq[ShardSlice]] = IndexedSeq.empty
  private var pushes: IndexedSeq[IndexedSeq[ShardSlice]] = IndexedSeq.empty
  private var inFlight: IndexedSeq[InFlightBucket] = IndexedSeq.empty
  private var reductions: IndexedSeq[GradientReduction] = IndexedSeq.empty
  private var pulledCount = 0
  private var collectedCount = 0
  private var completeVersion = -1L // the last version whose parameters have all arrived
  private val summedBuckets = new SummedBuckets
  private var pullTimes, pushTimes = Option.empty[NetworkTimes]

  /** All-gather of this session's ranks. Available once they are known. */
  lazy val gathering = new Gathering(job, rank, peers.size, settings.timeoutSeconds, clock, incoming, outgoing)

  private def others: Seq[Int] = peers.indices.filter(_ != rank)

  /**
   * Set the ranks and settings, and return the map of the memory. Then the worker makes a segment of `map.bytes` and
   * calls [[attach]].
   */
  def open(peers: IndexedSeq[ChunkPeer], layers: IndexedSeq[Long], settings: SessionSettings): SegmentMap = {
    if (map != null) throw new CommException(Protocol, "open was called twice")
    if (!peers.indices.contains(rank))
      throw new CommException(Protocol, s"rank $rank is not one of the ${peers.size} peers")
    this.peers = peers
    this.settings = settings
    pullTimes = settings.profileIterations.map(new NetworkTimes(_))
    pushTimes = settings.profileIterations.map(new NetworkTimes(_))
    // In nanoseconds. It is longer than an operation's timeout: a block is requested long before an operation waits for
    // it, and the operation's error is more useful than that of a fetch.
    incoming.open(peers, (FetchTimeouts * settings.timeoutSeconds * 1e9).toLong)
    // Nobody requests inline blocks, so they show no start-up. Blocks of the first profile's steps are fetched.
    outgoing.open(peers, inlineFrom = settings.profileIterations.fold(0L)(_ + 1L))
    val layout = new ShardLayout(layers, peers.size)
    def mapOf(rank: Int): SegmentMap = new SegmentMap(layout, rank, settings.encodings, settings.pullsAhead)
    if (settings.sharesMemory) incoming.neighbors.allow(mapOf)
    map = mapOf(rank)
    map
  }

  /**
   * Attach the worker's memory.
   *
   * @param path of the worker's open memory file, which has as many bytes as [[open]] returned.
   * @param pull buckets of the first version, as in [[cut]]
   * @param push buckets of the first version, as in [[cut]]
   */
  def attach(path: String, pull: IndexedSeq[Batch], push: IndexedSeq[Batch]): Unit = {
    attach(MappedSegment.map(path, openMap.bytes), pull, push)
    if (settings.sharesMemory) outgoing.offer(path)
  }

  /** Attach memory in this JVM. It has as many bytes as [[open]] returned, and is closed with this session. */
  def attach(memory: Segment, pull: IndexedSeq[Batch], push: IndexedSeq[Batch]): Unit = {
    openMap.markOwner(memory, job)
    segment = memory
    blocks = new SegmentBlocks(segment, map)
    cut(pull, push)
    if (map.encodings.parameters.inPlace) completeVersion = 0 // all ranks begin with equal values
    reductions = reduce(0)
  }

  /**
   * Set the buckets in which layers travel from the next version on. All ranks set the same buckets for the same
   * version, between their last push and the next prefetch.
   */
  def cut(pull: IndexedSeq[Batch], push: IndexedSeq[Batch]): Unit = {
    pulls = map.slices(pull)
    pushes = map.slices(push)
  }

  /** Serve a bucket of this rank's shard. Its values of `version` must be in place. */
  def publish(version: Long, bucket: Int): Unit = {
    checkUsable()
    val slice = pulls(bucket)(rank)
    if (!slice.isEmpty)
      segment.access(outgoing.parameters(bucket, version, slice, blocks.encodeParameters(slice, version)))
  }

  /** Begin to fetch the other shards' parameters of `version`, each bucket when it is published. */
  def prefetch(version: Long): Unit = {
    checkUsable()
    if (pulledCount != inFlight.size)
      throw new CommException(Protocol, s"prefetch of version $version before the last one was pulled")
    pulledCount = 0
    var before = BlockFetch.Complete
    inFlight = pulls.indices.map { bucket =>
      val arriving = new InFlightBucket(others.map(server => server -> pulls(bucket)(server)).collect {
        case (server, slice) if !slice.isEmpty =>
          val place = blocks.placeParameters(slice, version, _: Long, _: Long)
          val sink = sinkFor(blocks.parametersTarget(slice, version), map.encodings.parameters, slice, place)
          incoming.parameters(server, bucket, version, slice, sink, before)
      })
      if (settings.isSequential) before = arriving.all
      arriving
    }
  }

  /** Wait until the parameters of `version` have arrived, up to those of `bucket`. */
  def pull(version: Long, bucket: Int): Transfer = {
    checkUsable()
    val begin = clock.nanoTime
    val from = pulledCount
    while (pulledCount <= bucket) {
      val arriving = inFlight(pulledCount)
      finish(arriving, arriving.all, begin, s"pull of bucket $pulledCount", version, Notice.Parameters, pulledCount)
      pulledCount += 1
    }
    val finished = inFlight.slice(from, pulledCount)
    val transfer = Transfer(finished.map(_.bytes).sum, finished.map(_.times))
    pullTimes.foreach(_.add(transfer, ends = pulledCount == inFlight.size))
    if (pulledCount == inFlight.size) {
      completeVersion = version
      retire(Notice.Gradients, version - 1, deadline(begin))
    }
    node.metrics.pulledBytes.inc(transfer.bytes)
    node.metrics.pullTime.update(clock.nanoTime - begin, TimeUnit.NANOSECONDS)
    transfer
  }

  /** Give this rank's gradients of a bucket of `version`, which must be final, to the servers. */
  def push(version: Long, bucket: Int): Unit = {
    checkUsable()
    if (version != completeVersion)
      throw new CommException(Protocol, s"push of version $version before all of it was pulled")
    others.foreach { server =>
      val slice = pushes(bucket)(server)
      if (!slice.isEmpty)
        segment.access(outgoing.gradients(server, bucket, version, slice, blocks.encodeGradients(slice)))
    }
    reductions(bucket).own.complete(null)
  }

  /** Wait until this rank's shard has the sum of all ranks' gradients of a bucket. */
  def collect(version: Long, bucket: Int): Transfer = {
    checkUsable()
    val begin = clock.nanoTime
    val found = reductions(bucket)
    finish(found.inFlight, found.sum, begin, s"push of bucket $bucket", version, Notice.Gradients, bucket)
    val reduced = clock.nanoTime
    val arrived = found.inFlight.times.map(_.lastByte).foldLeft(begin)(_ max _)
    if (!found.slice.isEmpty) retire(Notice.Parameters, version, deadline(begin))
    val seconds = (reduced - arrived) / 1e9
    val transfer = Transfer(found.inFlight.bytes, Seq(found.inFlight.times), seconds, Some(found.sum.join()))
    collectedCount += 1
    pushTimes.foreach(_.add(transfer, ends = collectedCount == reductions.size))
    if (collectedCount == reductions.size) {
      collectedCount = 0
      reductions = reduce(version + 1)
    }
    node.metrics.pushedBytes.inc(transfer.bytes)
    node.metrics.pushTime.update(arrived - begin, TimeUnit.NANOSECONDS)
    node.metrics.aggregateTime.update(reduced - arrived, TimeUnit.NANOSECONDS)
    transfer
  }

  /** Return this rank's measurements in its last steps: `computing` from its front end, and its transfers. */
  def report(computing: ComputingTimes): RankReport = RankReport(
    computing.forward.flatMap(layers => pullTimes.flatMap(_.profile(layers, 0))),
    computing.backward.flatMap(layers => pushTimes.flatMap(_.profile(layers, computing.update))),
    computing.iteration
  )

  /**
   * Return how many buckets of gradients of `version` are added up, counted from the first one. Call it at any time, on
   * any thread.
   */
  def countSummed(version: Long): Int = summedBuckets.count(version)

  /** Report that this rank failed: end its own waits and the waits of other ranks for it. */
  def abandon(reason: String): Unit = {
    outgoing.announceFailure(reason)
    fail(new CommException(Closed, s"rank $rank failed: $reason"))
  }

  private[ps] def onPeerFailed(failure: PeerFailed): Unit =
    fail(new CommException(PeerLost, s"rank ${failure.from} failed: ${failure.reason}", failure.from))

  def onPeerLost(lost: ChunkPeer): Unit =
    peers.indices.find(peer => peer != rank && peers(peer) == lost).foreach { peer =>
      val address = s"${lost.host}:${lost.port}"
      fail(new CommException(PeerLost, s"the executor of rank $peer ($address) is gone or does not answer", peer))
    }

  /** End every wait of this session, now and later, with `cause`. Only the first cause counts. */
  def fail(cause: CommException): Unit = incoming.fail(cause)

  /**
   * Retire all blocks and free the memory. Call it on the thread that runs the operations, when the other ranks are
   * done with this rank's blocks or are failing.
   */
  def close(): Unit = {
    fail(new CommException(Closed, s"rank $rank left"))
    // Whatever fails here, the rank must leave the node.
    try incoming.neighbors.close()
    finally
      try freeOnceCleared()
      finally node.leave(this)
  }

  private def freeOnceCleared(): Unit =
    if (isCleared()) free()
    else
      node.retryToFree(map.bytes) {
        val cleared = outgoing.clear(() => true)
        if (cleared) free()
        cleared
      }

  private def isCleared(): Boolean = {
    val end = clock.nanoTime + TimeUnit.SECONDS.toNanos(CloseSeconds)
    try {
      val cleared = outgoing.clear(() => clock.nanoTime >= end)
      // The peer may be stopped, for example. Until it ends its read, or its connection ends, the memory has to stay.
      if (!cleared) log.warn("A peer still reads blocks of rank {}; they are retired when it is done or gone", rank)
      cleared
    } catch {
      case NonFatal(e) =>
        log.warn("Blocks of rank {} could not be retired; retrying: {}", rank, e.toString)
        false
    }
  }

  private def free(): Unit = if (segment != null) segment.close()

  /** Begin to fetch the gradients of `version` for this rank's shard, each bucket when it is pushed. */
  private def reduce(version: Long): IndexedSeq[GradientReduction] = {
    summedBuckets.clear()
    pushes.indices.map(reduce(version, _))
  }

  private def reduce(version: Long, bucket: Int): GradientReduction = {
    val slice = pushes(bucket)(rank)
    val arriving = new InFlightBucket((if (slice.isEmpty) Nil else others).map { worker =>
      val sink = sinkFor(blocks.gradientsTarget(worker, slice), map.encodings.gradients, slice, (_, _) => ())
      incoming.gradients(worker, bucket, version, slice, sink)
    })
    val own = new CompletableFuture[Void]
    val small = map.encodings.gradients.maxBytes(slice.shape) <= node.blocks.inlineThreshold
    val sum = incoming.compute(s"add up bucket $bucket of version $version", small, arriving.all, own) {
      val begun = clock.nanoTime
      blocks.reduce(slice, arriving.blocks.map(block => block.from -> block.received))
      summedBuckets.add(version, bucket)(value => segment.access(segment.putLong(map.summed, value)))
      Span(begun, clock.nanoTime)
    }
    new GradientReduction(slice, arriving, own, sum)
  }

  private def sinkFor(to: IndexedSeq[ByteRange], as: BlockEncoding, slice: ShardSlice, arrived: (Long, Long) => Unit) =
    new SegmentSink(segment, to, as.isValidLength(slice.shape, _), clock, arrived)

  /** Wait for `done`, which completes with or after all of `arriving`. */
  private def finish(
      arriving: InFlightBucket,
      done: CompletableFuture[_],
      begin: Long,
      what: String,
      version: Long,
      kind: Notice.Kind,
      bucket: Int
  ): Unit = {
    incoming.await(done, deadline(begin)) {
      val missing = arriving.blocks.filterNot(_.done.isDone)
      new CommException(
        Deadline,
        if (missing.isEmpty) s"rank $rank did not finish its $what of version $version in ${settings.timeoutSeconds} s"
        else
          s"rank $rank waited ${settings.timeoutSeconds} s for ${missing.map(_.from).mkString("rank ", ", rank ", "")}" +
            s" in $what of version $version (${missing.map(_.maxBytes).sum} bytes); a rank that needs longer than that" +
            " for a step needs a larger spark.sparkdl.comm.timeout",
        missing.headOption.fold(-1)(_.from)
      )
    }
    arriving.blocks.foreach(block => incoming.forget(kind, block.from, bucket, version))
  }

  private def deadline(begin: Long): Long = begin + (settings.timeoutSeconds * 1e9).toLong

  private def retire(kind: Notice.Kind, version: Long, end: Long): Unit =
    outgoing.retire(kind, version, () => incoming.hasFailed || clock.nanoTime >= end).foreach { name =>
      incoming.checkNotFailed()
      throw new CommException(
        Deadline,
        s"a reader still held block $name of rank $rank after ${settings.timeoutSeconds} s"
      )
    }

  private def openMap: SegmentMap =
    if (map == null || segment != null) throw new CommException(Protocol, "attach must follow open, once") else map

  private def checkUsable(): Unit =
    if (segment == null) throw new CommException(Protocol, "no segment is attached") else incoming.checkNotFailed()
}

private[comm] object PsSession {
  private val CloseSeconds = 2L

  /** Timeouts of an operation that a fetch may take: other blocks go first, and ranks compute meanwhile. */
  private val FetchTimeouts = 4
  private val log = LoggerFactory.getLogger(classOf[PsSession])
}
