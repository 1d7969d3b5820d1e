package sparkdl.comm.flow

import scala.collection.mutable

/**
 * Decides what passes an executor's uplink next, and when: its messages, and the blocks that others asked it for. Pure: whoever
 * drives it carries out the requests, and tells it what came of them. Not thread-safe.
 *
 * {{{
 * want | arrived | cancel               what has happened
 *   next                                after each: requests to carry out now
 *   wakeAt                              when to call `next` if nothing happens before
 * }}}
 *
 * Blocks are transferred in chunks. One window bounds the bytes in flight, which are those of
 * requests that have not arrived, of all peers together, and one more for each peer keeps one that is slow from filling it.
 * Among blocks of peers that have room, the most urgent comes first; what is in flight stays. Of equally urgent ones those go
 * first whose peers have least in flight, so that the work goes where it is done. One chunk of [[TransferScheduler.Share]] is of
 * the block that has waited longest, however urgent others are. A peer that stands still gives its part of the common window
 * back, and gets no more until something arrives again. A peer that has had nothing to do for [[TransferScheduler.Idle]] is
 * forgotten as soon as another one is new.
 *
 * Times are nanoseconds of one clock that never goes back.
 *
 * @param newWindow the one for all peers, and one for each
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

  /** Those of which something is still to be requested; the one that was requested least lately is the first. */
  private val longest = mutable.LinkedHashSet.empty[WantedBlock]
  private var wishes = 0L
  private var chunks = 0L
  private var latest = Long.MinValue // when `next` was called

  /** Bytes that are requested and have not arrived, without those of peers that stand still. */
  def inFlight: Long = all.inFlight

  /** The bound of [[inFlight]], in bytes. */
  def window: Long = all.bytes

  /** Bytes of a chunk of this block. */
  def chunk(block: Wanted): Int = ChunkSizes.chunk(all.rate, peers(block.peer).window.rate, block.bytes)

  /** So that peers have something in flight whenever their other links have room for it. */
  private def floor: Long = (1 + peers.values.count(_.isBusy)) * ChunkSizes.PerPeer

  /** Wants a block that can be transferred from now on. */
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

  /** The requests to carry out now, in this order. */
  def next(now: Long): Seq[Request] = {
    latest = now
    setStalledAside(now)
    Iterator.continually(choose(now)).takeWhile(_.isDefined).map(entry => ask(entry.get, now)).toList
  }

  /** When [[next]] may have more requests even if nothing happens before: later than `now`. */
  def wakeAt(now: Long): Option[Long] = {
    val times = (peers.values.flatMap(_.stallsAt) ++ all.wakeAt(now)).filter(_ > now)
    if (times.isEmpty) None else Some(times.min)
  }

  /**
   * What was requested has arrived. If its block was cancelled before, that is no matter.
   *
   * @param said when it arrived by the peer's clock, if it was the peer who said so
   * @return whether that was the last of its block
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

  /** The block is not wanted any more. What is in flight may still arrive, but nobody waits for it. */
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

  /** Whether the next chunk is of the block that has waited longest. */
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

  /** The most urgent one, of the peers that have room. */
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

  /** So few chunks go to who has waited longest that nobody else notices it. */
  val Share = 64

  /** Nanoseconds after which the window of a peer says little of its path. */
  val Idle: Long = 60L * 1000 * 1000 * 1000
}
