package sparkdl.comm.flow

/**
 * How much later than at best one hears from a peer, whose clock has another origin: what it says may queue on its way here. The
 * best of the last [[Lateness.Horizon]], or twice that, is what counts, as clocks do not run equally fast. A clock that was set
 * back, as that of a machine that started again, has another origin: what was known of the one before says nothing.
 */
private[flow] final class Lateness {
  private var begin = Long.MinValue
  private var best = Long.MaxValue
  private var before = Long.MaxValue
  private var latest = Long.MinValue // of what was said

  /**
   * Nanoseconds of what is heard now.
   *
   * @param said when, by the peer's clock
   */
  def of(said: Long, now: Long): Long = {
    if (begin == Long.MinValue || latest - said > Lateness.Disorder) {
      begin = now
      best = Long.MaxValue
      before = Long.MaxValue
      latest = said
    }
    latest = math.max(latest, said)
    if (now - begin > Lateness.Horizon) {
      begin = now
      before = best
      best = Long.MaxValue
    }
    best = math.min(best, now - said)
    now - said - math.min(best, before)
  }
}

private[flow] object Lateness {

  /** Nanoseconds in which clocks of two machines do not drift apart by as much as queues take. */
  val Horizon: Long = 10L * 1000 * 1000 * 1000

  /** Nanoseconds by which a peer may be heard in another order than it spoke, over several connections. */
  val Disorder: Long = 100L * 1000 * 1000
}
