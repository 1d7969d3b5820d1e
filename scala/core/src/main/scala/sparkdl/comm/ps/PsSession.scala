// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.util.concurrent.TimeUnit

import org.apache.spark.internal.Logging

import sparkdl.comm.CommException
import sparkdl.comm.CommException.{Closed, PeerLost, Protocol}
import sparkdl.comm.ibatch.{Batch, ComputingTimes, RankReport}
import sparkdl.comm.transport.ChunkPeer

/**
 * Settings of a session, equal on all ranks of a fit.
 *
 * @param pullsAhead as in [[SegmentMap]]
 * @param sharesMemory ranks on one host read each other's memory
 * @param isSequential a bucket of parameters is requested only after the one before has arrived.
 * @param profileIterations steps over which transfers are measured; None: they are not measured
 * @param timeoutSeconds longest wait of an operation
 */
private[comm] final case class SessionSettings(
    encodings: Encodings,
    pullsAhead: Boolean = false,
    sharesMemory: Boolean = false,
    isSequential: Boolean = false,
    profileIterations: Option[Int] = None,
    timeoutSeconds: Double
)

private[comm] object SessionSettings {

  /** Maximum timeout in seconds: thirty years. Its nanoseconds fit a Long. */
  val MostSeconds: Long = 1000000000L
}

/**
 * Membership of one rank in a synchronous parameter server. It keeps the other ranks' messages from
 * [[PsNode.join]] on. [[open]] sets its peers, and then [[attach]] sets its memory. From then on it
 * has [[transfers]].
 */
private[comm] final class PsSession(val job: Long, val rank: Int, node: PsNode) extends Logging {
  import PsSession._

  private[ps] val inbox = new Inbox(node.clock)
  private[ps] val neighbors = new Neighbors(job)
  @volatile private var opened = Option.empty[Opened]
  private var attached = Option.empty[Attached]

  /**
   * Set the ranks and settings, and return the map of the memory. Then the worker makes a segment
   * of `map.bytes` and calls [[attach]].
   */
  def open(
      peers: IndexedSeq[ChunkPeer],
      layers: IndexedSeq[Long],
      settings: SessionSettings
  ): SegmentMap = {
    if (opened.isDefined) throw new CommException(Protocol, "open was called twice")
    if (!peers.indices.contains(rank))
      throw new CommException(Protocol, s"rank $rank is not one of the ${peers.size} peers")
    // before a failed write over such a connection could fail this session
    node.endDeadConnections(peers, node.clock.nanoTime + (settings.timeoutSeconds * 1e9).toLong)
    // In nanoseconds. It is longer than an operation's timeout: a block is requested long before an
    // operation waits for it, and the operation's error is more useful than that of a fetch.
    val patience = (FetchTimeouts * settings.timeoutSeconds * 1e9).toLong
    // Nobody requests inline blocks, so they show no start-up. Blocks of the first profile's steps
    // are fetched.
    val inlineFrom = settings.profileIterations.fold(0L)(_ + 1L)
    val layout = new ShardLayout(layers, peers.size)
    def mapOf(rank: Int): SegmentMap =
      new SegmentMap(layout, rank, settings.encodings, settings.pullsAhead)
    val map = mapOf(rank)
    val incoming = new IncomingBlocks(job, rank, node, inbox, neighbors, peers, patience)
    val outgoing = new OutgoingBlocks(job, rank, node, peers, inlineFrom)
    val gathering =
      new Gathering(job, rank, peers.size, settings.timeoutSeconds, node.clock, inbox, outgoing)
    opened = Some(Opened(peers, settings, map, incoming, outgoing, gathering))
    if (settings.sharesMemory) neighbors.allow(mapOf)
    map
  }

  /**
   * Attach the worker's memory, and return its transfers.
   *
   * @param path of the worker's open memory file, which has as many bytes as [[open]] returned.
   * @param pull buckets of the first version, as in [[BucketTransfers.cut]]
   * @param push buckets of the first version, as in [[BucketTransfers.cut]]
   */
  def attach(path: String, pull: IndexedSeq[Batch], push: IndexedSeq[Batch]): BucketTransfers = {
    val open = openToAttach
    val transfers = attach(Segment.map(path, open.map.bytes), pull, push)
    if (open.settings.sharesMemory) open.outgoing.offer(path)
    transfers
  }

  /**
   * Attach memory in this JVM, and return its transfers. It has as many bytes as [[open]] returned,
   * and is closed with this session.
   */
  def attach(memory: Segment, pull: IndexedSeq[Batch], push: IndexedSeq[Batch]): BucketTransfers = {
    val Opened(_, settings, map, incoming, outgoing, _) = openToAttach
    map.markOwner(memory, job)
    val transfers =
      new BucketTransfers(node, settings, map, memory, inbox, incoming, outgoing, pull, push)
    attached = Some(Attached(memory, transfers))
    transfers
  }

  private def openToAttach: Opened =
    opened.filter(_ => attached.isEmpty).getOrElse(throw new CommException(
      Protocol,
      "attach must follow open, once"
    ))

  /** Transfers of the attached memory. */
  def transfers: BucketTransfers =
    attached.getOrElse(throw new CommException(Protocol, "no segment is attached")).transfers

  /** Return this rank's measurements. Before [[attach]] they have no transfers. */
  def report(computing: ComputingTimes): RankReport =
    attached.fold(RankReport(None, None, computing.iteration))(_.transfers.report(computing))

  /** All-gather of this session's ranks. */
  def gathering: Gathering =
    opened.getOrElse(throw new CommException(Protocol, "the session is not open")).gathering

  /** Report that this rank failed: end its own waits and the waits of other ranks for it. */
  def abandon(reason: String): Unit = {
    opened.foreach(_.outgoing.announceFailure(reason))
    fail(new CommException(Closed, s"rank $rank failed: $reason"))
  }

  private[ps] def onPeerFailed(failure: PeerFailed): Unit =
    fail(new CommException(
      PeerLost,
      s"rank ${failure.from} failed: ${failure.reason}",
      failure.from
    ))

  def onPeerLost(lost: ChunkPeer): Unit = opened.foreach { open =>
    open.peers.indices.find(peer => peer != rank && open.peers(peer) == lost).foreach { peer =>
      val address = s"${lost.host}:${lost.port}"
      fail(new CommException(
        PeerLost,
        s"the executor of rank $peer ($address) is gone or does not answer",
        peer
      ))
    }
  }

  /** End every wait of this session, now and later, with `cause`. Only the first cause counts. */
  def fail(cause: CommException): Unit = inbox.fail(cause)

  /**
   * Retire all blocks and free the memory. Call it on the thread that runs the operations, when the
   * other ranks are done with this rank's blocks or are failing.
   */
  def close(): Unit = {
    fail(new CommException(Closed, s"rank $rank left"))
    // Whatever fails here, the rank must leave the node.
    try neighbors.close()
    finally
      try opened.foreach(freeOnceCleared)
      finally node.leave(this)
  }

  private def freeOnceCleared(open: Opened): Unit = {
    def free(): Unit = attached.foreach(_.memory.close())
    if (isCleared(open.outgoing)) free()
    else
      node.retryToFree(open.map.bytes) {
        val cleared = open.outgoing.clear(() => true)
        if (cleared) free()
        cleared
      }
  }

  private def isCleared(outgoing: OutgoingBlocks): Boolean = {
    val end = node.clock.nanoTime + TimeUnit.SECONDS.toNanos(CloseSeconds)
    try {
      val cleared = outgoing.clear(() => node.clock.nanoTime >= end)
      // The peer may be stopped, for example. Until it ends its read, or its connection ends, the
      // memory has to stay.
      if (!cleared) logWarning(
        s"A peer still reads blocks of rank $rank; they are retired when it is done or gone"
      )
      cleared
    } catch {
      case e: Throwable =>
        logWarning(s"Blocks of rank $rank could not be retired; retrying: $e")
        false
    }
  }
}

private[comm] object PsSession {
  private val CloseSeconds = 2L

  /**
   * Timeouts of an operation that a fetch may take: other blocks go first, and ranks compute
   * meanwhile.
   */
  private val FetchTimeouts = 4

  /** State that [[PsSession.open]] adds. */
  private final case class Opened(
      peers: IndexedSeq[ChunkPeer],
      settings: SessionSettings,
      map: SegmentMap,
      incoming: IncomingBlocks,
      outgoing: OutgoingBlocks,
      gathering: Gathering
  )

  /** State that [[PsSession.attach]] adds. */
  private final case class Attached(memory: Segment, transfers: BucketTransfers)
}
