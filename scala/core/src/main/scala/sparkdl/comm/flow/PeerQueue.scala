package sparkdl.comm.flow

import scala.collection.mutable

/** Blocks that wait for one peer, and chunks in flight to it. */
private[flow] final class PeerQueue(val window: Window, order: Ordering[PendingSend]) {

  /** Blocks with bytes still to be requested, most urgent first. */
  val waiting: mutable.TreeSet[PendingSend] = mutable.TreeSet.empty(order)

  /** Requests in flight, oldest first. */
  val inFlight: mutable.LinkedHashSet[ChunkRequest] = mutable.LinkedHashSet.empty

  val queueingDelay = new QueueingDelay
  private var lastArrival = Long.MinValue
  private var lastLatency = 0L
  private var lastUse = 0L
  private var stalled = false

  /** True if nothing has arrived for so long that the peer gets no requests. */
  def isStalled: Boolean = stalled

  /** Time at which the peer stalls if nothing arrives before. None if it is stalled or has nothing in flight. */
  def stallsAt: Option[Long] =
    if (stalled) None
    else inFlight.headOption.map { oldest =>
      math.max(oldest.peerFlight.sent, lastArrival) + PeerQueue.PatienceNanos + 4 * lastLatency
    }

  def markStalled(): Unit = stalled = true

  def recordRequest(request: ChunkRequest, now: Long): Unit = {
    inFlight += request
    lastUse = now
  }

  def recordArrival(request: ChunkRequest, now: Long, delayNanos: Long): Unit = {
    inFlight -= request
    lastUse = now
    window.recordArrival(request.peerFlight, 0, now, delayNanos)
    lastArrival = now
    lastLatency = now - request.peerFlight.sent
    stalled = false
  }

  /** True if the peer is not stalled and has blocks waiting or requests in flight. */
  def isBusy: Boolean = !stalled && (inFlight.nonEmpty || waiting.nonEmpty)

  /** Time of the last request or arrival; None while a block waits or a request is in flight. */
  def idleSince: Option[Long] = if (inFlight.isEmpty && waiting.isEmpty) Some(lastUse) else None

  def forget(request: ChunkRequest): Unit = {
    inFlight -= request
    window.forget(request.peerFlight)
    if (inFlight.isEmpty) stalled = false // no arrival could end the stall
  }
}

private[flow] object PeerQueue {

  /** Nanoseconds without an arrival after which a peer counts as stalled. Four times its last latency is added. */
  val PatienceNanos: Long = 500L * 1000 * 1000
}

/** Progress of one block until all of it has arrived. */
private[flow] final class PendingSend(val block: SendRequest, val number: Long) {
  private var requestedBytes = 0L
  private var arrivedBytes = 0L

  /** Requests of this block that are in flight. */
  val inFlight: mutable.Set[ChunkRequest] = mutable.Set.empty

  def isFullyRequested: Boolean = requestedBytes == block.bytes

  def isComplete: Boolean = arrivedBytes == block.bytes

  /** Return the bytes to request next. A rest shorter than half a chunk joins the chunk before it. */
  def nextBytes(chunk: Int): Int = {
    val rest = block.bytes - requestedBytes
    if (rest < chunk + chunk / 2) rest.toInt else chunk
  }

  def takeNext(bytes: Int): ChunkRequest = {
    val request = new ChunkRequest(block, requestedBytes, bytes)
    requestedBytes += request.bytes
    inFlight += request
    request
  }

  def recordArrival(request: ChunkRequest): Unit = {
    inFlight -= request
    arrivedBytes += request.bytes
  }
}
