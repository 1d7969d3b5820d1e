package sparkdl.comm.flow

import scala.collection.mutable

/** Virtual time: what is to happen happens in its order. Times are nanoseconds. */
final class Simulation {
  private val events =
    mutable.PriorityQueue.empty[(Long, Long, () => Unit)](Ordering.by(event => (-event._1, -event._2)))
  private var count = 0L
  private var time = 0L

  def now: Long = time

  def after(nanos: Long)(happens: => Unit): Unit = {
    count += 1
    events.enqueue((time + nanos, count, () => happens))
  }

  /** Until then, or until nothing is left to happen. */
  def run(until: Long, unless: => Boolean = false): Unit =
    while (events.nonEmpty && events.head._1 <= until && !unless) {
      val (at, _, happens) = events.dequeue()
      time = at
      happens()
    }
}

/**
 * One direction of a cable: packets of each flow in their order, flows in turn.
 *
 * @param rate bytes per second
 * @param latency nanoseconds that a packet needs after it was sent
 */
final class Link(simulation: Simulation, var rate: Double, var latency: Long) {
  private val flows = mutable.LinkedHashMap.empty[Any, mutable.Queue[(Int, () => Unit)]]
  private var busy = false
  private var debt = 0.0 // of a nanosecond, so that rounding does not change the rate

  def send(flow: Any, bytes: Int)(there: => Unit): Unit = {
    flows.getOrElseUpdate(flow, mutable.Queue.empty).enqueue((bytes, () => there))
    if (!busy) serve()
  }

  private def serve(): Unit = flows.headOption match {
    case None => busy = false
    case Some((flow, queue)) =>
      busy = true
      flows -= flow
      val (bytes, there) = queue.dequeue()
      if (queue.nonEmpty) flows(flow) = queue // behind the others
      val exact = bytes / rate * 1e9 + debt
      debt = exact - exact.toLong
      simulation.after(exact.toLong) {
        simulation.after(latency)(there())
        serve()
      }
  }
}

/** A window that does not follow anything. */
final class FixedWindow(override val bytes: Long) extends Window {
  override def held(): Unit = ()
}
