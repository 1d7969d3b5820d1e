package sparkdl.comm.transport

/**
 * Stands between the plugin and Spark's transport. The plugin loads those that java.util.ServiceLoader finds beside it; its
 * own jar has none, that of the benchmarks has one that emulates slow connections.
 */
trait TransportWrapper {
  def wrap(transport: Transport): Transport
}
