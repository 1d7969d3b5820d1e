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
 * One direction of a cable, or a processor: packets of each flow in their order, flows in turn.
 *
 * @param rate bytes per second
 * @param latency nanoseconds that a packet needs after it was sent
 */
final class Link(simulation: Simulation, var rate: Double, latency: Long) {
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

/** An executor that answers: its processor makes chunks one after the other, its uplink is shared by all who asked. */
final class Sender(simulation: Simulation, packet: Int, val uplink: Link, val processor: Link, latency: () => Long) {
  def ask(receiver: Receiver, bytes: Int)(here: => Unit): Unit = simulation.after(latency()) {
    processor.send(this, bytes) {
      val packets = (bytes + packet - 1) / packet
      (1 to packets).foreach { number =>
        val size = if (number < packets) packet else bytes - (packets - 1) * packet
        uplink.send(receiver, size)(receiver.downlink.send(this, size) {
          receiver.receivedFrom(this) += size
          if (number == packets) here
        })
      }
    }
  }
}

/** An executor that asks, as its scheduler says. */
final class Receiver(
    simulation: Simulation,
    val downlink: Link,
    val scheduler: TransferScheduler,
    senders: Map[String, Sender]
) {
  val receivedFrom: mutable.Map[Sender, Long] = mutable.Map.empty[Sender, Long].withDefaultValue(0L)
  val completed: mutable.ArrayBuffer[Wanted] = mutable.ArrayBuffer.empty
  private var latencies = 0L
  private var arrivals = 0L
  private var wakes = -1L
  private var onComplete: Wanted => Unit = (_: Wanted) => ()

  def received: Long = receivedFrom.values.sum

  /** Of chunks since the last call, in nanoseconds. */
  def meanLatency(): Double = {
    val mean = latencies.toDouble / arrivals
    latencies = 0
    arrivals = 0
    mean
  }

  def whenComplete(does: Wanted => Unit): Unit = onComplete = does

  def want(block: Wanted): Unit = {
    scheduler.want(block)
    ask()
  }

  /** Wants two blocks of each, and if `more`, another one whenever one is here. */
  def wantAlways(names: Seq[String], bytes: Long, more: Boolean = true): Unit = {
    def block(name: String) = new Wanted("x", name, bytes, Urgency(0, 0), names.indexOf(name))
    whenComplete(done => if (more) scheduler.want(block(done.peer)))
    names.foreach(name => (1 to 2).foreach(_ => scheduler.want(block(name))))
    ask()
  }

  private def ask(): Unit = {
    scheduler.next(simulation.now).foreach { request =>
      val begun = simulation.now
      senders(request.block.peer).ask(this, request.bytes) {
        latencies += simulation.now - begun
        arrivals += 1
        if (scheduler.arrived(request, simulation.now)) {
          completed += request.block
          onComplete(request.block)
        }
        ask()
      }
    }
    scheduler.wakeAt(simulation.now).filter(_ != wakes).foreach { at =>
      wakes = at
      simulation.after(at - simulation.now)(ask())
    }
  }
}

/**
 * Executors on one switch.
 *
 * @param rate bytes per second of every cable
 * @param roundTrip nanoseconds, half of it in each direction
 */
final class Network(rate: Double, roundTrip: Long, senderCount: Int) {
  val simulation = new Simulation
  private val packet = if (rate > 5e8) 64 << 10 else 16 << 10
  var requestLatency: Long = roundTrip / 2

  val names: IndexedSeq[String] = (0 until senderCount).map(number => s"executor$number")
  val senders: Map[String, Sender] = names.map { name =>
    val uplink = new Link(simulation, rate, roundTrip / 2)
    name -> new Sender(simulation, packet, uplink, new Link(simulation, 20e9, 0), () => requestLatency)
  }.toMap

  def receiver(scheduler: TransferScheduler = new TransferScheduler): Receiver =
    new Receiver(simulation, new Link(simulation, rate, 0), scheduler, senders)

  /** Runs for so many seconds; bytes per second that came meanwhile. */
  def goodput(receiver: Receiver, seconds: Double): Double = {
    val (before, begin) = (receiver.received, simulation.now)
    simulation.run(begin + (seconds * 1e9).toLong)
    (receiver.received - before) / seconds
  }
}

/** A window that does not follow anything. */
final class FixedWindow(override val bytes: Long) extends Window {
  override def held(): Unit = ()
}
