package sparkdl.comm.flow

import scala.collection.mutable

/** What is wanted, and what is in flight, to one peer. */
private[flow] final class PeerQueue(val window: Window, order: Ordering[WantedBlock]) {

  /** Those of which something is still to be requested, the first one first. */
  val waiting: mutable.TreeSet[WantedBlock] = mutable.TreeSet.empty(order)

  /** Those that have not arrived, in the order in which they were requested. */
  val asked: mutable.LinkedHashSet[Request] = mutable.LinkedHashSet.empty

  val lateness = new Lateness
  private var lastArrival = Long.MinValue
  private var lastLatency = 0L
  private var lastUse = 0L
  private var stopped = false

  /** Nothing has arrived for so long that it gets nothing to do. */
  def isStalled: Boolean = stopped

  /** When that will be, if nothing comes before; never if nothing is in flight. */
  def stallsAt: Option[Long] =
    if (stopped) None
    else asked.headOption.map { oldest =>
      math.max(oldest.ofPeer.sent, lastArrival) + PeerQueue.Patience + 4 * lastLatency
    }

  def stalled(): Unit = stopped = true

  def ask(request: Request, now: Long): Unit = {
    asked += request
    lastUse = now
  }

  def arrived(request: Request, now: Long, late: Long): Unit = {
    asked -= request
    lastUse = now
    window.arrived(request.ofPeer, 0, now, late)
    lastArrival = now
    lastLatency = now - request.ofPeer.sent
    stopped = false
  }

  /** Something is in flight, or wanted. */
  def isBusy: Boolean = !stopped && (asked.nonEmpty || waiting.nonEmpty)

  /** Time of the last request or arrival; None while something is wanted or in flight. */
  def idleSince: Option[Long] = if (asked.isEmpty && waiting.isEmpty) Some(lastUse) else None

  def gone(request: Request): Unit = {
    asked -= request
    window.gone(request.ofPeer)
    if (asked.isEmpty) stopped = false // nothing would come that tells
  }
}

private[flow] object PeerQueue {

  /**
   * Nanoseconds without a byte, beside what chunks of it take, after which a peer is taken for one that stands
   * still.
   */
  val Patience: Long = 500L * 1000 * 1000
}

/** A block until all of it has arrived. */
private[flow] final class WantedBlock(val block: Wanted, val number: Long) {
  private var next = 0L
  private var here = 0L

  /** Those of its chunks that are in flight. */
  val asked: mutable.Set[Request] = mutable.Set.empty

  def isAsked: Boolean = next == block.bytes

  def isHere: Boolean = here == block.bytes

  /** Bytes to request next. A rest of less than half a chunk goes with the last one. */
  def size(chunk: Int): Int = {
    val rest = block.bytes - next
    if (rest < chunk + chunk / 2) rest.toInt else chunk
  }

  def take(bytes: Int): Request = {
    val request = new Request(block, next, bytes)
    next += request.bytes
    asked += request
    request
  }

  def arrived(request: Request): Unit = {
    asked -= request
    here += request.bytes
  }
}
