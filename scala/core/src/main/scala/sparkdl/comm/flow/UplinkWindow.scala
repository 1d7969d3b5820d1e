package sparkdl.comm.flow

/**
 * A window for what is sent. Its connections share the uplink, so a chunk overtakes what was in flight before it on others, and
 * tells neither the link's rate nor whether there is a queue. The rate is what arrived in a round, by its time. Once a round,
 * which is about as long as a chunk takes, the window becomes
 *
 *   rate * (1.5 * latency of the path + lateness) + the larger of a floor and rate * slack + two of its largest chunks
 *
 * So some chunks queue, and the window grows by what is too much of it as long as the link gives more. Small messages have the
 * room of [[ChunkSizes.Least]]: with two of them in flight, one whose threads wake up late would often have none on its way.
 * Where all send to all, a receiver whose downlink is busy holds up a part of what is in flight: the floor has something in
 * flight for the others then. And what has arrived is in flight until one hears of it, which queues behind all that comes here:
 * without the lateness, executors to which much is sent would send little.
 */
private[flow] final class UplinkWindow extends ProbingWindow {
  import UplinkWindow._

  private var size = Window.Start.toDouble
  private var known = 0.0

  // A round: bytes that have arrived, and of these what was sent since its begin.
  private var begin = Long.MinValue
  private var came = 0L
  private var largest = ChunkSizes.Least
  private var lateness = 0.0 // of each byte that has arrived, in nanoseconds
  private var fresh = 0L
  private var limited = false

  override def bytes: Long = size.toLong

  override def rate: Double = known

  override def held(): Unit = limited = true

  override def send(bytes: Int, now: Long): Flight = {
    if (inFlight == 0) nextRound(now) // a link without work does not show its rate
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
    known = if (limited) rate else math.max(known, rate) // what was not limited by the link, was slower than it
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

  /** With less than the rate of the link on a long path, it would stay with less. */
  private val PathShare = 1.5
}
