package sparkdl.comm.flow

import scala.collection.mutable

/** Blocks that wait for one peer, and chunks in flight to it. */
private[flow] final class PeerQueue(val window: Window, order: Ordering[WantedBlock]) {

  /** Blocks with bytes still to be requested, most urgent first. */
  val waiting: mutable.TreeSet[WantedBlock] = mutable.TreeSet.empty(order)

  /** Requests in flight, oldest first. */
  val asked: mutable.LinkedHashSet[Request] = mutable.LinkedHashSet.empty

  val lateness = new Lateness
  private var lastArrival = Long.MinValue
  private var lastLatency = 0L
  private var lastUse = 0L
  private var stopped = false

  /** True if nothing has arrived for so long that the peer gets no requests. */
  def isStalled: Boolean = stopped

  /** Time at which the peer stalls if nothing arrives before. None if it is stalled or has nothing in flight. */
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

  /** True if the peer is not stalled and has blocks waiting or requests in flight. */
  def isBusy: Boolean = !stopped && (asked.nonEmpty || waiting.nonEmpty)

  /** Time of the last request or arrival; None while a block waits or a request is in flight. */
  def idleSince: Option[Long] = if (asked.isEmpty && waiting.isEmpty) Some(lastUse) else None

  def gone(request: Request): Unit = {
    asked -= request
    window.gone(request.ofPeer)
    if (asked.isEmpty) stopped = false // no arrival could end the stall
  }
}

private[flow] object PeerQueue {

  /** Nanoseconds without an arrival after which a peer counts as stalled. Four times its last latency is added. */
  val Patience: Long = 500L * 1000 * 1000
}

/** Progress of one block until all of it has arrived. */
private[flow] final class WantedBlock(val block: Wanted, val number: Long) {
  private var next = 0L
  private var here = 0L

  /** Requests of this block that are in flight. */
  val asked: mutable.Set[Request] = mutable.Set.empty

  def isAsked: Boolean = next == block.bytes

  def isHere: Boolean = here == block.bytes

  /** Return the bytes to request next. A rest shorter than half a chunk joins the chunk before it. */
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
