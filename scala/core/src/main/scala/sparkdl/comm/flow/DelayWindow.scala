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
 *
 * Where connections share the link, a chunk overtakes what was in flight before it on others, and tells neither the link's
 * rate nor whether there is a queue. There the rate is what came in a round, by its time, and the window grows by its slack
 * alone; and there is room for two of the largest messages, which may have more bytes than a chunk.
 *
 * A path may become longer, and that must not look like a queue for ever. So [[DelayWindow.Horizon]] after the least
 * time was found it is measured again, by a chunk that is alone in flight. Should that meet a pause, the next ones
 * correct it.
 *
 * @param inTurn chunks come in the order in which they were asked for; false where connections share the link
 */
private[flow] final class DelayWindow(inTurn: Boolean = true) extends Window {
  import DelayWindow._

  private var size = Start.toDouble

  // The chunk that took least: nanoseconds, bytes, when it came, and the greatest rate since then.
  private var base = Double.PositiveInfinity
  private var baseBytes = 0
  private var foundAt = 0L
  private var fastest = 0.0

  // A round: of chunks asked for since its begin, those that are here.
  private var begin = Long.MinValue
  private var fresh = 0L
  private var best = 0.0 // bytes in a nanosecond
  private var came = 0L // bytes, of what was asked for before too
  private var least = Double.PositiveInfinity
  private var most = 0L // in flight
  private var largest = 0 // of what need not be a chunk
  private var limited = false
  private var quiet = QuietRounds - 1
  private var known = 0.0

  override def bytes: Long = size.toLong

  override def rate: Double = known

  /** The base is not known, or too old. */
  private def probing(now: Long): Boolean = base.isInfinite || now - foundAt > Horizon

  /** When what is still in flight is of slow senders, and disturbs no chunk that is to be alone. */
  private def drainedAt: Long =
    if (base.isInfinite) Long.MaxValue else lastAsk + Pause + (4 * base).toLong

  override def hasRoom(bytes: Int, now: Long): Boolean =
    if (probing(now)) inFlight == 0 || now >= drainedAt else super.hasRoom(bytes, now)

  override def wakeAt(now: Long): Option[Long] =
    if (inFlight > 0 && probing(now) && !base.isInfinite) Some(drainedAt) else None

  override def held(): Unit = limited = true

  override def ask(bytes: Int, now: Long): Flight = {
    if (!inTurn && inFlight == 0) nextRound(now) // a link without work does not show its rate
    super.ask(bytes, now)
  }

  override def arrived(flight: Flight, chunk: Int, floor: Long, now: Long): Unit = {
    val latency = math.max(1.0, (now - flight.asked).toDouble)
    val wasProbing = probing(now)
    if (latency <= base || wasProbing && probing(flight.asked) && isLast(flight)) {
      base = latency
      baseBytes = flight.bytes
      foundAt = now
      fastest = 0
    }
    gone(flight)
    came += flight.bytes
    if (wasProbing) nextRound(now)
    else if (flight.asked >= begin) {
      fresh += flight.bytes
      best = if (inTurn) math.max(best, flight.total / latency) else came / math.max(1.0, (now - begin).toDouble)
      most = math.max(most, flight.total)
      if (!inTurn) largest = math.max(largest, flight.bytes)
      // As if it were a whole chunk.
      least = math.min(least, latency * (1 + (chunk - flight.bytes).toDouble / flight.total))
      if (fresh * 4 >= size) {
        adapt(chunk, floor)
        nextRound(now)
      }
    }
  }

  private def adapt(chunk: Int, floor: Long): Unit = {
    fastest = math.max(fastest, best)
    known = if (limited) best else math.max(known, best) // what was not limited by the link, was slower than it
    val path = math.max(0, base - baseBytes / fastest)
    val fitting = math.max(best * (path + Slack) + 2 * math.max(chunk, largest), floor.toDouble)
    if (limited) {
      val queueing = least - path - chunk / best
      quiet = if (inTurn && queueing < (Slack + chunk / best) / 4) quiet + 1 else 0
      size = if (quiet >= QuietRounds) 2 * size else math.min(2 * size, math.max(size / 2, fitting))
    } else if (inTurn && most > fitting) size = math.min(size, math.max(size / 2, fitting))
  }

  private def nextRound(now: Long): Unit = {
    begin = now
    fresh = 0
    best = 0
    came = 0
    least = Double.PositiveInfinity
    most = 0
    largest = 0
    limited = false
  }
}

private[flow] object DelayWindow {

  /**
   * Before anything is known: a tenth of a second at 20 Mbit/s, and doubled four times in a millisecond on
   * loopback.
   */
  val Start: Long = 256 << 10

  /**
   * Nanoseconds of queueing that are no sign of a queue: threads and garbage collectors take that long now and
   * then.
   */
  val Slack: Double = 2e6

  /** Nanoseconds for which a base is believed. To find it again takes two round trips. */
  val Horizon: Long = 10L * 1000 * 1000 * 1000

  /** Nanoseconds after which, with some times the base, a chunk comes from a sender that is slow. */
  val Pause: Long = 50L * 1000 * 1000

  /** Rounds without a queue after which the link is taken to have become faster. */
  val QuietRounds = 3
}
