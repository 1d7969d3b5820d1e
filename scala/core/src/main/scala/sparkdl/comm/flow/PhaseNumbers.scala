package sparkdl.comm.flow

/**
 * Numbers the phases of one fit: its pulls and pushes, which count from 0. A phase gets the next number that `next` gives when
 * something of it is wanted for the first time, after all phases before it. So fits that share a `next` take turns, however
 * many steps each has done.
 */
private[comm] final class PhaseNumbers(next: () => Long) {
  import PhaseNumbers._

  private var last = -1L
  private var numbers = Vector.empty[Long] // of the last phases

  def apply(phase: Long): Long = synchronized {
    last = math.max(last, phase - Kept)
    while (last < phase) {
      last += 1
      numbers = (numbers :+ next()).takeRight(Kept)
    }
    numbers(numbers.size - 1 - math.min(numbers.size - 1L, last - phase).toInt)
  }
}

private object PhaseNumbers {

  /** A rank wants something of two phases at a time. */
  private val Kept = 4
}
