package sparkdl.comm.transport

/** What the control plane delivers to. Calls come one at a time. */
trait ControlReceiver {
  def received(message: Any): Unit
  def disconnected(host: String, port: Int): Unit
}

/** One-way messages between executors. */
trait ControlPlane {

  /** Where this executor is reached, together with [[Transport.host]]. */
  def port: Int

  /** Connects to another executor's control plane; fails if it is not there. */
  def connect(host: String, port: Int): ControlPeer

  def close(): Unit
}

/** Another executor's control plane. Messages are Java-serialisable and arrive in the order in which they were sent. */
trait ControlPeer {
  def send(message: Any): Unit
}
