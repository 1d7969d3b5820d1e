package sparkdl.comm.flow

/**
 * Window for outgoing data. Its connections share the uplink, so a chunk overtakes chunks in flight on other
 * connections. The latency of one chunk therefore shows neither the link's rate nor a queue. The rate is the bytes that
 * arrived in a round, divided by its time. Once a round, which lasts about as long as a chunk takes, the window becomes
 *
 *   rate * (1.5 * latency of the path + lateness) + the larger of a floor and rate * slack + two of its largest chunks
 *
 * So a few chunks queue, and the window grows by that surplus as long as the link gives more. Small messages count as
 * chunks of [[ChunkSizes.Least]]: with room for two of them only, a thread that wakes up late would often leave the
 * link empty. In all-to-all traffic, a receiver with a busy downlink holds up part of what is in flight. The floor
 * keeps bytes in flight to the other receivers. Confirmations queue behind all data that comes in: without the
 * lateness, an executor that receives much would send little.
 */
private[flow] final class UplinkWindow extends ProbingWindow {
  import UplinkWindow._

  private var size = Window.Start.toDouble
  private var known = 0.0

  // The current round: bytes that arrived, and `fresh`, those of them that were sent since it began.
  private var begin = Long.MinValue
  private var came = 0L
  private var largest = ChunkSizes.Least
  private var lateness = 0.0 // sum of each arrived byte's nanoseconds
  private var fresh = 0L
  private var limited = false

  override def bytes: Long = size.toLong

  override def rate: Double = known

  override def held(): Unit = limited = true

  override def send(bytes: Int, now: Long): Flight = {
    if (inFlight == 0) nextRound(now) // an idle link does not show its rate
    super.send(bytes, now)
  }

  override def arrived(flight: Flight, floor: Long, now: Long, late: Long): Unit = {
    val wasProbing = probed(flight, math.max(1.0, (now - late - flight.sent).toDouble), now)
    gone(flight)
    came += flight.bytes
    largest = math.max(largest, flight.bytes)
    lateness += flight.bytes * late.toDouble
    if (wasProbing) nextRound(now)
    else if (flight.sent >= begin) {
      fresh += flight.bytes
      if (fresh * 4 >= size) {
        adapt(came / math.max(1.0, (now - begin).toDouble), floor)
        nextRound(now)
      }
    }
  }

  private def adapt(rate: Double, floor: Long): Unit = {
    known = if (limited) rate else math.max(known, rate) // an unlimited round shows a lower bound
    val fitting = rate * (PathShare * pathLatency(rate) + lateness / came) + math.max(
      floor.toDouble,
      rate * Window.Slack + 2 * largest
    )
    if (limited) size = math.min(2 * size, math.max(size / 2, fitting))
  }

  private def nextRound(now: Long): Unit = {
    begin = now
    came = 0
    largest = ChunkSizes.Least
    lateness = 0
    fresh = 0
    limited = false
  }
}

private[flow] object UplinkWindow {

  /**
   * Factor of the path's latency in the window. With 1, a window that is too small for a long path would never grow.
   */
  private val PathShare = 1.5
}
