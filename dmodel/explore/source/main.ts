/** One script for the page and for its worker. */

import { begin } from "./page";
import { serve } from "./worker";

if (typeof document === "undefined") serve();
else begin();
