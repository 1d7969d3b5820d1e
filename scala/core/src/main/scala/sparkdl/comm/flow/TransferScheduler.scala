package sparkdl.comm.flow

import scala.collection.mutable

/**
 * Scheduler of an executor's uplink. It decides which message, or requested block, is sent next, and
 * when. It does no I/O: its caller carries out the requests and reports their outcome. Not thread-safe.
 *
 * {{{
 * want | arrived | cancel               report an event
 *   next                                after each: requests to carry out now
 *   wakeAt                              when to call `next` if there is no event before
 * }}}
 *
 * Blocks are sent in chunks. One window bounds the bytes in flight to all peers together: requested, and not arrived.
 * Each peer has one more window, so that a slow peer cannot fill the common one. Among blocks whose peers have room,
 * the most urgent goes first; chunks in flight are not interrupted. Among equally urgent blocks, those whose peers have
 * least in flight go first, so faster peers get more. One chunk in [[TransferScheduler.Share]] belongs to the block
 * that has waited longest, however urgent others are. A stalled peer gives its part of the common window back, and gets
 * no more until something arrives again. A peer that was idle for [[TransferScheduler.Idle]] is forgotten when a new
 * peer appears.
 *
 * Times are nanoseconds of one clock that never goes back.
 *
 * @param newWindow makes the common window, and one for each peer
 */
private[comm] final class TransferScheduler private[flow] (newWindow: () => Window) {
  import TransferScheduler._

  def this() = this(() => new UplinkWindow)

  private val order: Ordering[WantedBlock] = (one, other) => {
    val byUrgency = one.block.urgency.compare(other.block.urgency)
    if (byUrgency != 0) byUrgency
    else if (one.block.turn != other.block.turn) Integer.compare(one.block.turn, other.block.turn)
    else java.lang.Long.compare(one.number, other.number)
  }

  private val all = newWindow()
  private val peers = mutable.LinkedHashMap.empty[String, PeerQueue]
  private val blocks = mutable.Map.empty[Wanted, WantedBlock]

  /** Blocks with bytes still to be requested, least recently served first. */
  private val longest = mutable.LinkedHashSet.empty[WantedBlock]
  private var wishes = 0L
  private var chunks = 0L
  private var latest = Long.MinValue // last call of `next`

  /** Bytes in flight, without those of stalled peers. */
  def inFlight: Long = all.inFlight

  /** Bound of [[inFlight]], in bytes. */
  def window: Long = all.bytes

  /** Return the bytes of this block's next chunk. */
  def chunk(block: Wanted): Int = ChunkSizes.chunk(all.rate, peers(block.peer).window.rate, block.bytes)

  /** Bytes that the common window must admit, so that every busy peer has some in flight. */
  private def floor: Long = (1 + peers.values.count(_.isBusy)) * ChunkSizes.PerPeer

  /** Add a block that can be sent from now on. */
  def want(block: Wanted): Unit = {
    require(!blocks.contains(block), s"block $block is wanted already")
    val entry = new WantedBlock(block, wishes)
    wishes += 1
    blocks(block) = entry
    if (!peers.contains(block.peer)) {
      forgetIdle()
      peers(block.peer) = new PeerQueue(newWindow(), order)
    }
    peers(block.peer).waiting += entry
    longest += entry
  }

  private def forgetIdle(): Unit = {
    val idle = peers.filter { case (_, peer) => peer.idleSince.exists(latest - _ > Idle) }
    peers --= idle.keys
  }

  /** Return the requests to carry out now, in this order. */
  def next(now: Long): Seq[Request] = {
    latest = now
    setStalledAside(now)
    Iterator.continually(choose(now)).takeWhile(_.isDefined).map(entry => ask(entry.get, now)).toList
  }

  /** Return when [[next]] may have more requests without an event before; later than `now`. */
  def wakeAt(now: Long): Option[Long] = {
    val times = (peers.values.flatMap(_.stallsAt) ++ all.wakeAt(now)).filter(_ > now)
    if (times.isEmpty) None else Some(times.min)
  }

  /**
   * Record that a request arrived. If its block was cancelled before, do nothing.
   *
   * @param said time of arrival by the peer's clock, if the peer reported the arrival
   * @return true if it was the last request of its block
   */
  def arrived(request: Request, now: Long, said: Option[Long] = None): Boolean =
    blocks.get(request.block).filter(_.asked(request)).exists { entry =>
      entry.arrived(request)
      val peer = peers(request.block.peer)
      val late = said.fold(0L)(peer.lateness.of(_, now))
      request.ofAll.foreach(all.arrived(_, floor, now, late))
      peer.arrived(request, now, late)
      if (entry.isHere) blocks -= request.block
      entry.isHere
    }

  /** Remove a block. Requests in flight may still arrive, and are ignored. */
  def cancel(block: Wanted): Unit = blocks.remove(block).foreach { entry =>
    entry.asked.foreach(giveBack)
    longest -= entry
    peers(block.peer).waiting -= entry
  }

  private def giveBack(request: Request): Unit = {
    request.ofAll.foreach(all.gone)
    peers(request.block.peer).gone(request)
  }

  private def setStalledAside(now: Long): Unit =
    peers.values.filter(_.stallsAt.exists(_ <= now)).foreach { peer =>
      peer.asked.foreach { request =>
        request.ofAll.foreach(all.gone)
        request.ofAll = None
      }
      peer.stalled()
    }

  /** Return true if the next chunk belongs to the block that has waited longest. */
  private def isForLongest: Boolean = chunks % Share == Share - 1

  private def choose(now: Long): Option[WantedBlock] = {
    val found = if (isForLongest) longest.find(hasRoom(_, now)) else first(now)
    found.filter { entry =>
      val fits = all.hasRoom(size(entry), now)
      if (!fits) all.held()
      fits
    }
  }

  private def size(entry: WantedBlock): Int = entry.size(chunk(entry.block))

  private def hasRoom(entry: WantedBlock, now: Long): Boolean = {
    val peer = peers(entry.block.peer)
    !peer.isStalled && peer.window.hasRoom(size(entry), now)
  }

  /** Return the most urgent block whose peer has room. */
  private def first(now: Long): Option[WantedBlock] = {
    var found: Option[WantedBlock] = None
    peers.values.foreach { peer =>
      peer.waiting.headOption.filter(_ => !peer.isStalled).foreach { entry =>
        if (!hasRoom(entry, now)) peer.window.held()
        else if (found.forall(goesBefore(entry, _))) found = Some(entry)
      }
    }
    found
  }

  private def goesBefore(one: WantedBlock, other: WantedBlock): Boolean = {
    val byUrgency = one.block.urgency.compare(other.block.urgency)
    lazy val byFlight =
      java.lang.Long.compare(peers(one.block.peer).window.inFlight, peers(other.block.peer).window.inFlight)
    if (byUrgency != 0) byUrgency < 0 else if (byFlight != 0) byFlight < 0 else order.lt(one, other)
  }

  private def ask(entry: WantedBlock, now: Long): Request = {
    val peer = peers(entry.block.peer)
    val request = entry.take(size(entry))
    request.ofPeer = peer.window.send(request.bytes, now)
    request.ofAll = Some(all.send(request.bytes, now))
    peer.ask(request, now)
    longest -= entry
    if (entry.isAsked) peer.waiting -= entry else longest += entry // behind the others
    chunks += 1
    request
  }
}

private[comm] object TransferScheduler {

  /** Number of chunks per chunk that goes to the block that has waited longest: too few to slow the others. */
  val Share = 64

  /** Nanoseconds after which a peer's window says little about its path. */
  val Idle: Long = 60L * 1000 * 1000 * 1000
}
