// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import scala.collection.mutable

/**
 * Scheduler of an executor's uplink. It decides which message, or requested block, is sent next,
 * and when. It does no I/O: its caller carries out the requests and reports their outcome. Not
 * thread-safe.
 *
 * {{{
 * want | arrived | cancel               report an event
 *   next                                after each: requests to carry out now
 *   wakeAt                              when to call `next` if there is no event before
 * }}}
 *
 * Blocks are sent in chunks. One window bounds the bytes in flight to all peers together:
 * requested, and not arrived. Each peer has one more window, so that a slow peer cannot fill the
 * common one. Among blocks whose peers have room, the most urgent goes first; chunks in flight are
 * not interrupted. Among equally urgent blocks, those whose peers have least in flight go first, so
 * faster peers get more. One chunk in [[TransferScheduler.FairnessInterval]] belongs to the block
 * that has waited longest, however urgent others are. A stalled peer gives its part of the common
 * window back, and gets no more until something arrives again. A peer that was idle for
 * [[TransferScheduler.IdleNanos]] is forgotten when a new peer appears.
 *
 * Times are nanoseconds of one clock that never goes back.
 *
 * @param newWindow makes the common window, and one for each peer
 */
private[comm] final class TransferScheduler private[flow] (newWindow: () => Window) {
  import TransferScheduler._

  def this() = this(() => new UplinkWindow)

  private val order: Ordering[PendingSend] = (one, other) => {
    val byUrgency = one.block.urgency.compare(other.block.urgency)
    if (byUrgency != 0) byUrgency
    else if (one.block.turn != other.block.turn) Integer.compare(one.block.turn, other.block.turn)
    else java.lang.Long.compare(one.number, other.number)
  }

  private val commonWindow = newWindow()
  private val peers = mutable.LinkedHashMap.empty[String, PeerQueue]
  private val blocks = mutable.Map.empty[SendRequest, PendingSend]

  /** Blocks with bytes still to be requested, least recently served first. */
  private val longestWaiting = mutable.LinkedHashSet.empty[PendingSend]
  private var addedCount = 0L
  private var requestCount = 0L
  private var lastNextTime = Long.MinValue // last call of `next`

  /** Bytes in flight, without those of stalled peers. */
  def inFlight: Long = commonWindow.inFlight

  /** Bound of [[inFlight]], in bytes. */
  def windowBytes: Long = commonWindow.bytes

  /**
   * Return the present chunk size of a block, in bytes. It depends on the measured rates of the
   * link and of the peer, and on the size of the block. The last chunk may be smaller or larger:
   * see [[PendingSend.nextBytes]].
   */
  def chunkBytes(block: SendRequest): Int =
    ChunkSizes.chunkBytes(commonWindow.rate, peers(block.peer).window.rate, block.bytes)

  /** Bytes that the common window must admit, so that every busy peer has some in flight. */
  private def floorBytes: Long = (1 + peers.values.count(_.isBusy)) * ChunkSizes.PerPeerBytes

  /** Add a block that can be sent from now on. */
  def add(block: SendRequest): Unit = {
    require(!blocks.contains(block), s"block $block was added already")
    val entry = new PendingSend(block, addedCount)
    addedCount += 1
    blocks(block) = entry
    if (!peers.contains(block.peer)) {
      forgetIdle()
      peers(block.peer) = new PeerQueue(newWindow(), order)
    }
    peers(block.peer).waiting += entry
    longestWaiting += entry
  }

  private def forgetIdle(): Unit = {
    val idle = peers.filter { case (_, peer) =>
      peer.idleSince.exists(lastNextTime - _ > IdleNanos)
    }
    peers --= idle.keys
  }

  /** Return the requests to carry out now, in this order. */
  def next(now: Long): Seq[ChunkRequest] = {
    lastNextTime = now
    markStalledPeers(now)
    Iterator.continually(select(now)).takeWhile(_.isDefined).map(entry =>
      requestChunk(entry.get, now)
    ).toList
  }

  /** Return when [[next]] may have more requests without an event before; later than `now`. */
  def wakeAt(now: Long): Option[Long] = {
    val times = (peers.values.flatMap(_.stallsAt) ++ commonWindow.wakeAt(now)).filter(_ > now)
    if (times.isEmpty) None else Some(times.min)
  }

  /**
   * Record that a request arrived. If its block was cancelled before, do nothing.
   *
   * @param peerTime time of arrival by the peer's clock, if the peer reported the arrival
   * @return true if it was the last request of its block
   */
  def recordArrival(request: ChunkRequest, now: Long, peerTime: Option[Long] = None): Boolean =
    blocks.get(request.block).filter(_.inFlight(request)).exists { entry =>
      entry.recordArrival(request)
      val peer = peers(request.block.peer)
      val delayNanos = peerTime.fold(0L)(peer.queueingDelay.record(_, now))
      request.commonFlight.foreach(commonWindow.recordArrival(_, floorBytes, now, delayNanos))
      peer.recordArrival(request, now, delayNanos)
      if (entry.isComplete) blocks -= request.block
      entry.isComplete
    }

  /** Remove a block. Requests in flight may still arrive, and are ignored. */
  def cancel(block: SendRequest): Unit = blocks.remove(block).foreach { entry =>
    entry.inFlight.foreach(release)
    longestWaiting -= entry
    peers(block.peer).waiting -= entry
  }

  private def release(request: ChunkRequest): Unit = {
    request.commonFlight.foreach(commonWindow.forget)
    peers(request.block.peer).forget(request)
  }

  private def markStalledPeers(now: Long): Unit =
    peers.values.filter(_.stallsAt.exists(_ <= now)).foreach { peer =>
      peer.inFlight.foreach { request =>
        request.commonFlight.foreach(commonWindow.forget)
        request.commonFlight = None
      }
      peer.markStalled()
    }

  /** Return true if the next chunk belongs to the block that has waited longest. */
  private def servesLongestWaiting: Boolean =
    requestCount % FairnessInterval == FairnessInterval - 1

  private def select(now: Long): Option[PendingSend] = {
    val found = if (servesLongestWaiting) longestWaiting.find(hasRoom(_, now)) else mostUrgent(now)
    found.filter { entry =>
      val fits = commonWindow.hasRoom(nextBytes(entry), now)
      if (!fits) commonWindow.markLimited()
      fits
    }
  }

  private def nextBytes(entry: PendingSend): Int = entry.nextBytes(chunkBytes(entry.block))

  private def hasRoom(entry: PendingSend, now: Long): Boolean = {
    val peer = peers(entry.block.peer)
    !peer.isStalled && peer.window.hasRoom(nextBytes(entry), now)
  }

  /** Return the most urgent block whose peer has room. */
  private def mostUrgent(now: Long): Option[PendingSend] = {
    var found: Option[PendingSend] = None
    peers.values.foreach { peer =>
      peer.waiting.headOption.filter(_ => !peer.isStalled).foreach { entry =>
        if (!hasRoom(entry, now)) peer.window.markLimited()
        else if (found.forall(goesBefore(entry, _))) found = Some(entry)
      }
    }
    found
  }

  private def goesBefore(one: PendingSend, other: PendingSend): Boolean = {
    val byUrgency = one.block.urgency.compare(other.block.urgency)
    lazy val byFlight =
      java.lang.Long.compare(
        peers(one.block.peer).window.inFlight,
        peers(other.block.peer).window.inFlight
      )
    if (byUrgency != 0) byUrgency < 0 else if (byFlight != 0) byFlight < 0 else order.lt(one, other)
  }

  private def requestChunk(entry: PendingSend, now: Long): ChunkRequest = {
    val peer = peers(entry.block.peer)
    val bytes = nextBytes(entry)
    val request = entry.takeNext(bytes, peer.window.send(bytes, now), commonWindow.send(bytes, now))
    peer.recordRequest(request, now)
    longestWaiting -= entry
    // behind the others
    if (entry.isFullyRequested) peer.waiting -= entry else longestWaiting += entry
    requestCount += 1
    request
  }
}

private[comm] object TransferScheduler {

  /**
   * Number of chunks per chunk that goes to the block that has waited longest: too few to slow the
   * others.
   */
  val FairnessInterval = 64

  /** Nanoseconds after which a peer's window says little about its path. */
  val IdleNanos: Long = 60L * 1000 * 1000 * 1000
}
