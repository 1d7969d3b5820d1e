package sparkdl.comm.flow

/**
 * A window that follows its link by the time that chunks take, as FAST TCP does (Wei, Jin, Low, Hegde: "FAST TCP:
 * motivation, architecture, algorithms, performance", 2006). What was in flight when a chunk was asked for, by the time
 * that it took, is the link's rate. The least time that a chunk took, less its transfer at that rate, is the path's
 * latency. Once a round, which is about as long as a chunk takes, the window becomes
 *
 *   rate * (latency of the path + slack) + two chunks
 *
 * So in the end chunks queue for the slack and the time of one chunk: that is what an urgent one waits for, and what
 * keeps the link busy, as a window is used in whole chunks. It never becomes less than a floor, with which each of many
 * senders has something to send. Of the chunks of a round the best one counts: those of a sender that is slow itself say
 * nothing about the link. If none met a queue to speak of, round after round, the link has more to give: then, and at
 * the begin, the window doubles. A round in which nothing was held back says nothing, unless more was in flight than
 * fits: then the windows of senders let too much through together.
 */
private[flow] final class DelayWindow extends ProbingWindow {
  import DelayWindow._

  private var size = Window.Start.toDouble

  // A round: of chunks asked for since its begin, those that are here.
  private var begin = Long.MinValue
  private var fresh = 0L
  private var best = 0.0 // bytes in a nanosecond
  private var least = Double.PositiveInfinity
  private var most = 0L // in flight
  private var limited = false
  private var quiet = QuietRounds - 1
  private var known = 0.0

  override def bytes: Long = size.toLong

  override def rate: Double = known

  override def held(): Unit = limited = true

  override def arrived(flight: Flight, chunk: Int, floor: Long, now: Long, late: Long): Unit = {
    val latency = math.max(1.0, (now - flight.asked).toDouble)
    val wasProbing = probed(flight, latency, now)
    gone(flight)
    if (wasProbing) nextRound(now)
    else if (flight.asked >= begin) {
      fresh += flight.bytes
      best = math.max(best, flight.total / latency)
      most = math.max(most, flight.total)
      // As if it were a whole chunk.
      least = math.min(least, latency * (1 + (chunk - flight.bytes).toDouble / flight.total))
      if (fresh * 4 >= size) {
        adapt(chunk, floor)
        nextRound(now)
      }
    }
  }

  private def adapt(chunk: Int, floor: Long): Unit = {
    known = if (limited) best else math.max(known, best) // what was not limited by the link, was slower than it
    val path = pathLatency(best)
    val fitting = math.max(best * (path + Window.Slack) + 2 * chunk, floor.toDouble)
    if (limited) {
      val queueing = least - path - chunk / best
      quiet = if (queueing < (Window.Slack + chunk / best) / 4) quiet + 1 else 0
      size = if (quiet >= QuietRounds) 2 * size else math.min(2 * size, math.max(size / 2, fitting))
    } else if (most > fitting) size = math.min(size, math.max(size / 2, fitting))
  }

  private def nextRound(now: Long): Unit = {
    begin = now
    fresh = 0
    best = 0
    least = Double.PositiveInfinity
    most = 0
    limited = false
  }
}

private[flow] object DelayWindow {

  /** Rounds without a queue after which the link is taken to have become faster. */
  val QuietRounds = 3
}
