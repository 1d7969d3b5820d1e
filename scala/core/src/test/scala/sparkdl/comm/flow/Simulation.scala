// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import scala.collection.mutable

/** Simulation in virtual time, which runs events in order. Times are nanoseconds. */
final class Simulation {
  private val events =
    mutable.PriorityQueue.empty[(Long, Long, () => Unit)](Ordering.by(event =>
      (-event._1, -event._2)
    ))
  private var count = 0L
  private var time = 0L

  def now: Long = time

  def after(nanos: Long)(happens: => Unit): Unit = {
    count += 1
    events.enqueue((time + nanos, count, () => happens))
  }

  /** Run until that time, or until there are no events. */
  def run(until: Long, unless: => Boolean = false): Unit =
    while (events.nonEmpty && events.head._1 <= until && !unless) {
      val (at, _, happens) = events.dequeue()
      time = at
      happens()
    }
}

/**
 * Direction of a cable. It carries the packets of each flow in order, and the flows in turn.
 *
 * @param rate bytes per second
 * @param latency nanoseconds that a packet needs after it was sent
 */
final class Link(simulation: Simulation, var rate: Double, var latency: Long) {
  private val flows = mutable.LinkedHashMap.empty[Any, mutable.Queue[(Int, () => Unit)]]
  private var busy = false
  private var debt = 0.0 // part of a nanosecond, so that rounding does not change the rate

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

/** Window of fixed size. */
final class FixedWindow(override val bytes: Long) extends Window {
  override def markLimited(): Unit = ()
}
