// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

/**
 * Window for outgoing data. Its connections share the uplink, so a chunk overtakes chunks in flight
 * on other connections. The latency of one chunk therefore shows neither the link's rate nor a
 * queue. The rate is the bytes that arrived in a round, divided by its time. Once a round, which
 * lasts about as long as a chunk takes, the window becomes
 *
 *   rate * (1.5 * latency of the path + queueing delay)
 *     + the larger of a floor and rate * slack + two of its largest chunks
 *
 * So a few chunks queue, and the window grows by that surplus as long as the link gives more. Small
 * messages count as chunks of [[ChunkSizes.LeastBytes]]: with room for two of them only, a thread
 * that wakes up late would often leave the link empty. In all-to-all traffic, a receiver with a
 * busy downlink holds up part of what is in flight. The floor keeps bytes in flight to the other
 * receivers. Confirmations queue behind all data that comes in: without the queueing delay, an
 * executor that receives much would send little.
 */
private[flow] final class UplinkWindow extends ProbingWindow {
  import UplinkWindow._

  private var windowBytes = Window.StartBytes.toDouble
  private var knownRate = 0.0

  // The current round: bytes that arrived, and `freshBytes`, those of them that were sent since it
  // began.
  private var roundBegin = Long.MinValue
  private var arrivedBytes = 0L
  private var largestBytes = ChunkSizes.LeastBytes
  private var delayByteNanos = 0.0 // sum of each arrived byte's nanoseconds
  private var freshBytes = 0L
  private var isLimited = false

  override def bytes: Long = windowBytes.toLong

  override def rate: Double = knownRate

  override def markLimited(): Unit = isLimited = true

  override def send(bytes: Int, now: Long): Flight = {
    if (inFlight == 0) nextRound(now) // an idle link does not show its rate
    super.send(bytes, now)
  }

  override def recordArrival(
      flight: Flight,
      floorBytes: Long,
      now: Long,
      delayNanos: Long
  ): Unit = {
    val wasStale =
      recordLatency(flight, math.max(1.0, (now - delayNanos - flight.sent).toDouble), now)
    forget(flight)
    arrivedBytes += flight.bytes
    largestBytes = math.max(largestBytes, flight.bytes)
    delayByteNanos += flight.bytes * delayNanos.toDouble
    if (wasStale) nextRound(now)
    else if (flight.sent >= roundBegin) {
      freshBytes += flight.bytes
      if (freshBytes * 4 >= windowBytes) {
        adapt(arrivedBytes / math.max(1.0, (now - roundBegin).toDouble), floorBytes)
        nextRound(now)
      }
    }
  }

  private def adapt(rate: Double, floorBytes: Long): Unit = {
    // an unlimited round shows a lower bound
    knownRate = if (isLimited) rate else math.max(knownRate, rate)
    val fitting =
      rate * (PathFactor * pathLatency(rate) + delayByteNanos / arrivedBytes) + math.max(
        floorBytes.toDouble,
        rate * Window.SlackNanos + 2 * largestBytes
      )
    if (isLimited) windowBytes = math.min(2 * windowBytes, math.max(windowBytes / 2, fitting))
  }

  private def nextRound(now: Long): Unit = {
    roundBegin = now
    arrivedBytes = 0
    largestBytes = ChunkSizes.LeastBytes
    delayByteNanos = 0
    freshBytes = 0
    isLimited = false
  }
}

private[flow] object UplinkWindow {

  /**
   * Factor of the path's latency in the window. With 1, a window that is too small for a long path
   * would never grow.
   */
  private val PathFactor = 1.5
}
