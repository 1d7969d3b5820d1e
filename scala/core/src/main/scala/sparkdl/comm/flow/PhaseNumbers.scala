package sparkdl.comm.flow

/**
 * Priorities of one fit's phases: its pulls and pushes, which count from 0. A phase takes its number from `next` when
 * something of it is first sent, after all phases before it. So fits that share `next` take turns, however many steps
 * each has done.
 */
private[comm] final class PhaseNumbers(next: () => Long) {
  import PhaseNumbers._

  private var last = -1L
  private var numbers = Vector.empty[Long] // of the last phases

  def apply(phase: Long): Long = synchronized {
    last = math.max(last, phase - KeptPhases)
    while (last < phase) {
      last += 1
      numbers = (numbers :+ next()).takeRight(KeptPhases)
    }
    numbers(numbers.size - 1 - math.min(numbers.size - 1L, last - phase).toInt)
  }
}

private object PhaseNumbers {

  /** Phases whose numbers are kept. A rank transfers data of two phases at a time. */
  private val KeptPhases = 4
}
