package sparkdl.comm.bigdl

import sparkdl.comm.Clock
import sparkdl.comm.ibatch.RecentSteps

/** A stopwatch that is always at one layer, or stopped. Keeps the rounds of the last `steps` steps. Times are in seconds. */
private[bigdl] final class LayerTimes(layers: Int, steps: Int, clock: Clock) {
  private val rounds = new RecentSteps[Array[Double]](steps)
  private var round = new Array[Double](layers)
  private var since = 0L
  private var current = Option.empty[Int]

  /** A round begins; its time counts for no layer yet. */
  def begin(): Unit = {
    round = new Array[Double](layers)
    current = None
    since = clock.nanoTime
  }

  /** The time that went by counts for the current layer; what comes counts for none, until [[at]]. */
  def stop(): Unit = {
    current.foreach(layer => round(layer) += (clock.nanoTime - since) / 1e9)
    current = None
  }

  /** The time from now on counts for `layer`. */
  def at(layer: Int): Unit = {
    stop()
    current = Some(layer)
    since = clock.nanoTime
  }

  /** The time since the last call counts for `layer`. */
  def was(layer: Int): Unit = {
    val now = clock.nanoTime
    round(layer) += (now - since) / 1e9
    since = now
  }

  /** The time since the last call counts for no layer. */
  def skip(): Unit = since = clock.nanoTime

  def end(): Unit = {
    stop()
    rounds.add(round)
  }

  /** The median of each layer; None if there was no round. */
  def medians: Option[IndexedSeq[Double]] =
    if (rounds.isEmpty) None else Some((0 until layers).map(layer => RecentSteps.median(rounds.values.map(_(layer)))))
}
