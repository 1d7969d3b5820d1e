// SPDX-License-Identifier: Apache-2.0

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

  /**
   * Time at which the peer stalls if nothing arrives before. None if it is stalled or has nothing
   * in flight.
   */
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

  /**
   * Nanoseconds without an arrival after which a peer counts as stalled. Four times its last
   * latency is added.
   */
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

  /**
   * Return the bytes to request next. A rest shorter than half a chunk joins the chunk before it.
   */
  def nextBytes(chunk: Int): Int = {
    val rest = block.bytes - requestedBytes
    if (rest < chunk + chunk / 2) rest.toInt else chunk
  }

  /**
   * Request the next bytes, which have an entry in the window of the peer and in the common one.
   */
  def takeNext(bytes: Int, inPeer: Flight, inCommon: Flight): ChunkRequest = {
    val request = new ChunkRequest(block, requestedBytes, bytes, inPeer, Some(inCommon))
    requestedBytes += request.bytes
    inFlight += request
    request
  }

  def recordArrival(request: ChunkRequest): Unit = {
    inFlight -= request
    arrivedBytes += request.bytes
  }
}

/**
 * Queueing delay of what a peer reports: latency above the minimum seen for this peer. The peer's
 * clock has another origin, so only differences between latencies are known. The minimum is that of
 * the last [[QueueingDelay.HorizonNanos]] to twice that, because clocks drift apart. A report much
 * older than the newest one means that the peer's clock was set back, for example by a reboot. Then
 * the estimate starts over.
 */
private[flow] final class QueueingDelay {
  private var periodBegin = Long.MinValue
  private var leastLatency = Long.MaxValue
  private var leastLatencyBefore = Long.MaxValue
  private var newestReport = Long.MinValue // newest report, by the peer's clock

  /**
   * Record a report that arrives now, and return its queueing delay in nanoseconds.
   *
   * @param peerTime time of the report by the peer's clock
   * @param now time of arrival by this executor's clock
   */
  def record(peerTime: Long, now: Long): Long = {
    if (periodBegin == Long.MinValue || newestReport - peerTime > QueueingDelay.DisorderNanos) {
      periodBegin = now
      leastLatency = Long.MaxValue
      leastLatencyBefore = Long.MaxValue
      newestReport = peerTime
    }
    newestReport = math.max(newestReport, peerTime)
    if (now - periodBegin > QueueingDelay.HorizonNanos) {
      periodBegin = now
      leastLatencyBefore = leastLatency
      leastLatency = Long.MaxValue
    }
    leastLatency = math.min(leastLatency, now - peerTime)
    now - peerTime - math.min(leastLatency, leastLatencyBefore)
  }
}

private[flow] object QueueingDelay {

  /** Nanoseconds in which two machines' clocks drift apart by less than queueing delays. */
  val HorizonNanos: Long = 10L * 1000 * 1000 * 1000

  /** Nanoseconds by which a peer's reports may arrive out of order, over several connections. */
  val DisorderNanos: Long = 100L * 1000 * 1000
}
